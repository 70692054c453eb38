"""Information about a plan for the user: its `forecast`, and which `changes` would help most (`what_if`)."""

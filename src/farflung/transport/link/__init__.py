"""A link between two holders: sending, receiving, rates and health; and sessions, which outlive links."""

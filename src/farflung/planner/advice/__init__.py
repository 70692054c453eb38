"""For whoever reads a plan: what to expect (`forecast`), what would help most (`what_if`, of `changes`)."""

"""One file for each command of `farflung`."""

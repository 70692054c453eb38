"""How facts change the state, each by a function that decides nothing."""

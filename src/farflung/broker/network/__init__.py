"""Where workers can be reached, and help for pairs that cannot reach each other."""

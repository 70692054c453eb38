"""How two members of a plan reach each other, whatever stands between: directly, in reverse, by relay."""

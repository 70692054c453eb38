"""How fast this machine computes and copies."""

"""How far a worker's compute thread may go ahead of the one that writes what leaves."""

MOST_WAITING = 4
"""Tensors that wait to be written at once; who has more waits for them."""

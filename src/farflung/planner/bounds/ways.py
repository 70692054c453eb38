"""Workers and the hops between them as a graph: who can reach whom, and how far it is at least."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def components(usable: Bools) -> list[NDArray[np.int64]]:
    """Workers that usable pairs join, whichever way they are used."""
    either = usable | usable.T
    left = np.ones(len(either), dtype=bool)
    found = []
    while left.any():
        reached = np.zeros(len(either), dtype=bool)
        fresh = np.array([int(np.flatnonzero(left)[0])])
        while len(fresh):
            reached[fresh] = True
            fresh = np.flatnonzero(either[fresh].any(axis=0) & ~reached)
        found.append(np.flatnonzero(reached))
        left &= ~reached
    return found


def shortest(hop: Floats) -> Floats:
    """Lengths of the shortest ways: [n, n]."""
    distance = hop.copy()
    np.fill_diagonal(distance, 0.0)
    for middle in range(len(distance)):
        distance = np.minimum(distance, distance[:, middle, None] + distance[None, middle, :])
    return distance

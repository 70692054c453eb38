"""Workers as a graph of hops, and as a queue in which each waits for those before it."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Queue:
    """Workers of `speeds`, the fastest first, who have one range each of M microbatches' work.

    `beside` is the most work that a worker may have without holding up whoever comes later. `tied` says that
    the first one may hold the last range too, so that its work need not lie before that of the others.
    """

    speeds: Floats
    microbatches: int
    beside: float
    tied: bool

    def most(self, room: float, part: float, hop: float, seconds: float) -> float:
        """Operations of a microbatch that they do at most, if the first has `room` seconds for all of them.

        Each leaves the next one less: by `part` of what it does of one microbatch, and by a `hop`. The
        fastest first, and each as much as it can, do the most. Those so slow that they could only work beside
        others are taken to wait for nobody, all `seconds` long.
        """
        slow = self.speeds * seconds < 2 * self.microbatches * self.beside
        done = 0.0
        for number, speed in enumerate(self.speeds[~slow].tolist()):
            if number:
                room = max(0.0, room - hop)
            done += speed * room
            if number or not self.tied:
                room -= room * part / self.microbatches
        if self.beside and room < seconds / 2:
            return np.inf  # the last of them may work beside others, too: nothing is known
        return (done + float(self.speeds[slow].sum()) * seconds) / self.microbatches

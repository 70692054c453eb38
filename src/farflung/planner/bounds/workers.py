"""Workers as a graph of hops, and as a queue in which each waits for those before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def components(usable: Bools) -> list[NDArray[np.int64]]:
    """The connected components of workers by usable pairs, in either direction."""
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
    """Lengths of the shortest paths: [n, n]."""
    distance = hop.copy()
    np.fill_diagonal(distance, 0.0)
    for middle in range(len(distance)):
        distance = np.minimum(distance, distance[:, middle, None] + distance[None, middle, :])
    return distance


@dataclass(frozen=True)
class Queue:
    """Workers with `speeds`, the fastest first, that run one range each of M microbatches.

    `beside` is the most work that a worker may have without delaying later ones. `tied` says that the first
    worker may also hold the last range, so that its work need not come before that of the others.
    """

    speeds: Floats
    microbatches: int
    beside: float
    tied: bool

    def most(self, room: float, part: float, hop: float, seconds: float) -> float:
        """The most operations of a microbatch that they can do, if the first has `room` seconds for all of
        them.

        The next worker has less: by `part` of what each does of one microbatch, and by a `hop`. They do the
        most if the fastest are first and each does as much as it can. Workers so slow that they could only
        work in parallel to others are assumed to wait for no other, for all `seconds`.
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
            return np.inf  # the last of them may also work in parallel to others: no bound
        return (done + float(self.speeds[slow].sum()) * seconds) / self.microbatches

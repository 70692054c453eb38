"""What a search looks up: a workload at the positions where it may be cut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from farflung.planner.positions import Positions
from farflung.planner.ties import kept_together, loops
from farflung.workload import Workload
from farflung.workload.arrays import before

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PARTS = 512
LEVELS = 24


@dataclass(frozen=True)
class Tables:
    """A workload at m positions, ascending, both ends among them.

    Parameters
    ----------
    at : int64 [m]
        Positions in the workload.
    work, forward, backward : float64 [m]
        Operations before a position, bytes that cross it, bytes of gradients that cross it back.
    owned : int64 [m]
        Parameters first read before a position.
    fed : float64 [m]
        Bytes of model inputs that are first read before a position.
    fixed, made, came : float64 [m, m]
        Bytes that the range from row to column needs once, and for each microbatch in flight: of what it
        makes, and of what it received.
    loop : two indices, or None
        Whether the worker of the first segment runs the last one too: the first segment then ends at the
        first index, and the last one begins at the second or earlier.
    """

    at: Ints
    work: Floats
    forward: Floats
    backward: Floats
    owned: Ints
    fed: Floats
    fixed: Floats
    made: Floats
    came: Floats
    loop: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.at)

    def need(self, window: int, recompute: bool = False) -> Floats:
        """Bytes that each range needs with `window` microbatches in flight: [m, m]."""
        if recompute:
            return self.fixed + self.made + window * self.came
        return self.fixed + window * (self.made + self.came)

    @cached_property
    def levels(self) -> Floats:
        """Ascending bounds on crossing bytes: all there are, or quantiles of them."""
        inner = np.unique(self.forward[1:-1]) if len(self) > 2 else np.zeros(1)
        if len(inner) <= LEVELS:
            return inner
        return np.unique(inner[np.linspace(0, len(inner) - 1, LEVELS).astype(int)])

    @cached_property
    def before(self) -> Ints:
        """The last position up to each one that no more bytes cross than each level allows: [levels, m].

        0 where there is none.
        """
        allowed = self.forward[None, :] <= self.levels[:, None]
        return np.asarray(np.maximum.accumulate(np.where(allowed, np.arange(len(self)), 0), axis=1))

    @cached_property
    def latest(self) -> Ints:
        """Up to which position r further segments can each own a parameter, for r = 0, 1, ...; then -1."""
        found = [len(self) - 1]
        while found[-1] >= 0:
            found.append(int(np.searchsorted(self.owned, self.owned[found[-1]], side="left")) - 1)
        return np.array(found, dtype=np.int64)

    def index(self, position: int) -> int:
        """The entry nearest to a position of the workload."""
        return int(np.abs(self.at - position).argmin())


def tables_of(workload: Workload) -> tuple[Tables, ...]:
    """The tables of plain pipelines, and of each loop worth trying where a parameter is used at both ends."""
    straight = Positions.of(workload, 1, PARTS, kept_together(workload))
    found = [_tables(workload, straight.at, None)]
    found += [
        _tables(workload, positions.at, (head, last)) for positions, head, last in loops(workload, 1, PARTS)
    ]
    return tuple(found)


def _tables(workload: Workload, at: Ints, loop: tuple[int, int] | None) -> Tables:
    count = len(at)
    first_read = np.zeros(len(workload))
    for feed in workload.feeds:
        first_read[feed.readers[0]] += feed.bytes
    fixed, made, came = (np.zeros((count, count)) for _ in range(3))
    for column, stop in enumerate(at.tolist()):
        if stop:
            rows = at[:column]
            none, one = (workload.memory_up_to(stop, window)[rows] for window in (0, 1))
            spared = workload.memory_up_to(stop, 0, recompute=True)[rows]
            fixed[:column, column] = none
            made[:column, column] = spared - none
            came[:column, column] = one - spared
    return Tables(
        at=at,
        work=workload.work[at],
        forward=workload.crossing_forward[at],
        backward=workload.crossing_backward[at],
        owned=workload.owned[at],
        fed=before(first_read)[at],
        fixed=fixed,
        made=made,
        came=came,
        loop=loop,
    )

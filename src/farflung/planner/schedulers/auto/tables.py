"""Lookup tables of a search: a workload at the positions where it may be cut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from farflung.planner.cutting.positions import Positions
from farflung.planner.cutting.ties import loops, straight
from farflung.planner.home import HomeRule
from farflung.planner.memoize import once
from farflung.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PARTS = 512
LEVELS = 24


@dataclass(frozen=True)
class Tables(Positions):
    """A workload at m positions, ascending, with both ends.

    Parameters
    ----------
    loop : two indices, or None
        Whether the worker of the first segment runs the last one too: the first segment then ends at the
        first index, and the last one begins at the second or earlier.
    """

    loop: tuple[int, int] | None = None

    @cached_property
    def levels(self) -> Floats:
        """Ascending bounds on crossing bytes: all values, or quantiles of them."""
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
        """The last position that leaves parameters for r more segments, for r = 0, 1, ...; then -1."""
        found = [len(self) - 1]
        while found[-1] >= 0:
            found.append(int(np.searchsorted(self.owned, self.owned[found[-1]], side="left")) - 1)
        return np.array(found, dtype=np.int64)

    def index(self, position: int) -> int:
        """The entry nearest to a position of the workload."""
        return int(np.abs(self.at - position).argmin())


@once
def tables_of(workload: Workload) -> tuple[Tables, ...]:
    """The tables of plain pipelines, and of each loop to try if a parameter is used at both ends."""
    ends = loops(workload, PARTS)
    return (
        Tables(workload, straight(workload, PARTS).at),
        *(Tables(workload, positions.at, loop=(head, last)) for positions, head, last in ends),
    )


def home_tables(workload: Workload, rule: HomeRule) -> tuple[Tables, ...]:
    """The tables of plain pipelines, and of the loop in which one home worker has both ends, if it helps."""
    found, plain = rule.loop(workload, PARTS), Tables(workload, straight(workload, PARTS).at)
    if found is None:
        return (plain,)
    positions, head, last = found
    return plain, Tables(workload, positions.at, loop=(head, last))

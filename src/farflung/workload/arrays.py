"""Arrays over the nodes of a workload, and sums over ranges of nodes that count shared items once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def before(values: Floats) -> Floats:
    """Sums of the `n` values before each position: [n + 1], starting with 0."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


class Gap(NamedTuple):
    """Bytes that are occupied from the node `last` until the node `at` and belong to no node between."""

    last: int
    at: int
    bytes: float


class Gaps:
    """Memory that waits for later nodes."""

    def __init__(self, gaps: Iterable[Gap]) -> None:
        points = np.array(list(gaps), dtype=np.float64).reshape(-1, 3)
        self._last: NDArray[np.int64] = points[:, 0].astype(np.int64)
        self._at: NDArray[np.int64] = points[:, 1].astype(np.int64)
        self._bytes: Floats = points[:, 2].copy()

    def up_to(self, stop: int) -> Floats:
        """At each node before `stop`, the bytes that wait for a node from `stop` on: [stop]."""
        over = (self._at >= stop) & (self._last < stop)
        counted = np.bincount(self._last[over], self._bytes[over], stop).astype(np.float64)
        return np.asarray(np.cumsum(counted))


class Touched:
    """Weights of items that nodes need, summed over any range of nodes, in constant time for short skips.

    Parameters
    ----------
    first : float64 [n]
        Weight of the items that each node makes or is the first to need.
    again
        (position of the previous need, position, weight) of every further need of an item: it counts in a
        range that contains this need but not the previous one.
    """

    def __init__(self, first: Floats, again: Iterable[tuple[int, int, float]] = ()) -> None:
        self._count = len(first)
        self._before = before(first)
        points = np.array(sorted(again, key=lambda p: p[0] - p[1]), dtype=np.float64).reshape(-1, 3)
        self._last: NDArray[np.int64] = points[:, 0].astype(np.int64)
        self._at: NDArray[np.int64] = points[:, 1].astype(np.int64)
        self._weight: Floats = points[:, 2].copy()
        self._shortness = self._last - self._at  # ascending: the longest skips come first
        change = np.zeros(self._count + 2)
        np.add.at(change, self._last + 1, self._weight)
        np.add.at(change, self._at + 1, -self._weight)
        self._crossing = np.cumsum(change)[: self._count + 1]

    def of(self, start: int, stop: int) -> float:
        """The sum over the nodes from `start` up to `stop`."""
        held = float(self._before[stop] - self._before[start] + self._crossing[start])
        return held - self.passing(start, stop)

    def up_to(self, stop: int) -> Floats:
        """The sums over the ranges from every start below `stop` up to it: [stop]."""
        held = self._before[stop] - self._before[:stop] + self._crossing[:stop]
        return np.asarray(held - self.passing_up_to(stop))

    def passing(self, start: int, stop: int) -> float:
        """The weight of items that are needed before `start` and from `stop` on, but not between."""
        longest = int(np.searchsorted(self._shortness, start - stop, side="left"))
        if not longest:
            return 0.0
        over = (self._last[:longest] < start) & (self._at[:longest] >= stop)
        return float(self._weight[:longest] @ over)

    def passing_up_to(self, stop: int) -> Floats:
        """`passing` of the ranges from every start below `stop` up to it: [stop]."""
        over = (self._at >= stop) & (self._last < stop)
        counted = np.bincount(self._last[over], self._weight[over], stop).astype(np.float64)
        return before(counted)[:stop]

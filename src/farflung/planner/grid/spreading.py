"""How thinly components must spread if the stages fall into few runs, and what gradient averages cost then.

The proof is in `bound`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from farflung.planner.grid.components import Level
from farflung.planner.grid.objective import Costs

MOST_PARTED = 16  # stages: 231 ways to part them into runs
Seconds = NDArray[np.float64]


def least_by_runs(sync: Costs, level: Level, stages: int, replicas: int) -> Seconds:
    """For r = 1, 2, ... stages: the least that the dearest worker pays if there are no more than r runs."""
    lengths = _Lengths(sync, level, replicas)
    found = np.full(stages, np.inf)
    if stages > MOST_PARTED:
        for runs in range(1, stages + 1):
            length = -(-stages // runs)
            found[runs - 1] = lengths.dearest(length, length)
        return found
    for parts in _partitions(stages, stages):
        least = max(
            lengths.dearest(length, sum(part for part in parts if part >= length)) for length in set(parts)
        )
        found[len(parts) - 1] = min(found[len(parts) - 1], least)
    return np.minimum.accumulate(found)


class _Lengths:
    """What workers pay in runs of different lengths between the components of one level."""

    def __init__(self, sync: Costs, level: Level, replicas: int) -> None:
        self._sync, self._groups, self._replicas = sync, level.groups, replicas
        self.dearest = cache(self._dearest)
        self._paid = cache(self._paid_in)

    def _dearest(self, length: int, stages: int) -> float:
        """The least that the dearest worker pays where runs at least this long have `stages` stages."""
        paid, count = self._paid(length), stages * self._replicas
        if paid is None:
            return float("inf")
        most = [min(len(group), len(group) // length * stages) for group in self._groups]
        if sum(most) < count:
            return float("inf")
        cheapest = [np.sort(paid[group])[:limit] for group, limit in zip(self._groups, most, strict=True)]
        return float(np.sort(np.concatenate(cheapest))[count - 1])

    def _paid_in(self, length: int) -> Seconds | None:
        """At least what each worker pays in a run of `length` stages or more; None if no such run is full."""
        held = [(group, len(group) // length) for group in self._groups if len(group) >= length]
        if sum(most for _, most in held) < self._replicas:
            return None
        partners = np.hstack([_partners(self._sync, group, most) for group, most in held])
        return np.array(np.sort(partners, axis=1)[:, : self._replicas - 1].sum(axis=1))


def _partners(sync: Costs, group: NDArray[np.int64], most: int) -> Costs:
    """Workers x most: what each one's cheapest partners in the group cost; its own place there is taken."""
    costs = sync[:, group]
    costs[group, np.arange(len(group))] = np.inf
    cheapest = np.sort(costs, axis=1)[:, :most]
    cheapest[group, -1] = np.inf
    return cheapest


def _partitions(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Every way to write `total` as a sum of parts up to `largest`, descending."""
    if total == 0:
        yield ()
    for part in range(min(total, largest), 0, -1):
        for rest in _partitions(total - part, part):
            yield (part, *rest)

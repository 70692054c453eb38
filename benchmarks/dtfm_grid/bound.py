"""A lower bound on DT-FM's total over all grids.

For a limit t on hop costs, let the links of at most t split the workers into components. Cut the stages at
every hop that costs more than t: within a *run* of stages between cuts each pipeline stays in one
component, so every stage of a run has the same number of workers from each component. Now assume that no
worker's sum of gradient averages exceeds D. What D says of the number of runs:

* (packing) A worker whose stage holds n of its component pays at least its n - 1 cheapest links within it and
  its replicas - n cheapest ones out of it, so D tells how many of its component it needs in its stage. The
  run that holds the neediest worker of a component has as many pipelines in that component: components share
  a run only if their needs fit in the replicas, and a run is no longer than the size of any of them divided
  by its need (by its least need, in a run without the neediest worker of any component). All runs together
  are as long as there are stages.
* (spreading) To a run of L stages a component gives at most its size / L workers a stage. A worker in a run
  at least that long pays for its replicas - 1 cheapest partners under these limits, and the lengths of the
  runs say how many workers are in runs at least that long: take those who pay least. So for every way to part
  the stages into runs there is a least D. (Of too many stages, only the longest of r runs is looked at.)

Both give a least number of runs; one hop less than that costs more than t, and as many cost more than any
smaller limit. The components change at the edges of the minimum spanning tree only. So the sum of the hops is
at least the sum over these limits of (step to the next limit) x (hops above it), beside the cheapest link for
each hop; and the bound is the least, over D, of D plus twice that.

How few runs of stages hold all components, if every worker needs some of its own beside it.

The proof is in `bound`.

How thinly components must spread if the stages fall into few runs, and what gradient averages cost then.

The proof is in `bound`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from farflung.planner.schedulers.evolutionary.grid import Costs, GridCosts

Labels = NDArray[np.int64]

MOST_LEVELS = 48


@dataclass(frozen=True)
class Level:
    """Each worker's component while hops cost at most a limit, and the seconds to the next limit."""

    labels: Labels
    step: float

    @property
    def groups(self) -> list[Labels]:
        """The workers of each component."""
        order = np.argsort(self.labels, kind="stable")
        _, starts = np.unique(self.labels[order], return_index=True)
        return np.split(order, starts[1:])


def levels_of(hop: Costs) -> tuple[float, list[Level]]:
    """The cheapest hop, and the levels from it up to where all is one component, which is none itself.

    `hop` is symmetric. Of too many levels, some neighbours are made one with the components of the dearest of
    them, which are the fewest.
    """
    edges = _spanning_tree(hop)
    labels = np.arange(len(hop))
    found: list[Level] = []
    for (cost, one, other), (dearer, *_) in pairwise(edges):
        labels = np.where(labels == labels[other], labels[one], labels)
        if dearer > cost:
            found.append(Level(labels, dearer - cost))
    ends = np.unique(np.linspace(0, len(found), MOST_LEVELS + 1).astype(int)).tolist()
    merged = [
        Level(found[end - 1].labels, sum(level.step for level in found[first:end]))
        for first, end in pairwise(ends)
    ]
    return edges[0][0], merged


def _spanning_tree(costs: Costs) -> list[tuple[float, int, int]]:
    """The edges of a minimum spanning tree, cheapest first (Prim)."""
    count = len(costs)
    reach, via = costs[0].copy(), np.zeros(count, int)
    outside = np.ones(count, bool)
    outside[0] = False
    edges = []
    for _ in range(count - 1):
        node = int(np.where(outside, reach, np.inf).argmin())
        edges.append((float(reach[node]), int(via[node]), node))
        outside[node] = False
        nearer = costs[node] < reach
        reach[nearer], via[nearer] = costs[node][nearer], node
    return sorted(edges)


Counts = NDArray[np.int64]


def least_sync(sync: Costs, level: Level, replicas: int) -> Costs:
    """Workers x replicas: at least what a worker pays in a stage with n of its component (column n - 1)."""
    same = level.labels[:, None] == level.labels[None, :]
    inside = _cheapest_sums(np.where(same & ~np.eye(len(sync), dtype=bool), sync, np.inf), replicas - 1)
    outside = _cheapest_sums(np.where(same, np.inf, sync), replicas - 1)
    return inside + outside[:, ::-1]


def needs(least: Costs, limits: NDArray[np.float64]) -> Counts:
    """Limits x workers: the fewest of its component with which a worker stays below the limit."""
    return np.stack([(least < limit).argmax(axis=1) + 1 for limit in limits])


def fewest_runs(needed: Counts, level: Level, stages: int, replicas: int) -> NDArray[np.float64]:
    """For each row of `needs`: in fewer runs the components cannot be packed, nor fill the stages.

    Sorted by how long a run each component allows, at least as many runs are at most that long as the
    components up to there need, and the runs' lengths must add up to the stages. Further runs, without the
    neediest worker of any component, may be longer.
    """
    groups = level.groups
    need = np.stack([needed[:, group].max(axis=1) for group in groups], axis=1)
    size = np.array([[len(group) for group in groups]])
    longest = np.minimum(size // need, stages)
    by_length = np.argsort(longest, axis=1, kind="stable")
    need, longest = np.take_along_axis(need, by_length, 1), np.take_along_axis(longest, by_length, 1)
    shared = -(-np.cumsum(need, axis=1) // replicas)
    alone = np.cumsum(2 * need > replicas, axis=1)
    runs = np.maximum(shared, alone)
    filled = (np.diff(runs, axis=1, prepend=0) * longest).sum(axis=1)
    modest = np.stack([needed[:, group].min(axis=1) for group in groups], axis=1)
    more = -(-np.maximum(stages - filled, 0) // np.minimum(size // modest, stages).max(axis=1))
    total = runs[:, -1] + more
    if (size % stages).any():
        total = np.maximum(total, 2)
    return total.astype(float)


def _cheapest_sums(costs: Costs, most: int) -> Costs:
    """Rows x (0 .. most): the sums of a row's cheapest entries, infinite where it has too few."""
    rows = np.sort(costs, axis=1)[:, :most]
    return np.hstack([np.zeros((len(costs), 1)), np.cumsum(rows, axis=1)])


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


MOST_SYNCS = 160
_ROUNDING = 1 - 1e-10  # of the sums, which are taken in another order elsewhere
_TOLERANCE = 1e-11


def lower_bound(costs: GridCosts) -> float:
    """Seconds below which no grid's total can be."""
    stages, replicas = costs.objective.stages, costs.objective.replicas
    away = costs.sync + np.diag(np.full(len(costs.sync), np.inf))
    floor = float(np.sort(away, axis=1)[:, : replicas - 1].sum(axis=1).max())
    if stages == 1:
        return floor * _ROUNDING
    cheapest, levels = levels_of(np.minimum(costs.hop, costs.hop.T))
    packing = [least_sync(costs.sync, level, replicas) for level in levels]
    spreading = [least_by_runs(costs.sync, level, stages, replicas) for level in levels]
    syncs = _breakpoints(floor, packing + spreading)
    limits = np.append(syncs[1:], np.inf) - _TOLERANCE
    hops, runs = np.full(len(syncs), cheapest * (stages - 1)), np.ones(len(syncs))
    for level, least, spread in reversed(list(zip(levels, packing, spreading, strict=True))):
        runs = np.maximum(runs, fewest_runs(needs(least, limits), level, stages, replicas))
        runs = np.maximum(runs, 1 + (spread[:, np.newaxis] >= limits).sum(axis=0))
        hops += level.step * (runs - 1)
    return float((syncs + 2 * hops).min()) * _ROUNDING


def _breakpoints(floor: float, found: list[Seconds]) -> Seconds:
    """What the dearest worker may pay at which more becomes possible: ascending, thinned if too many."""
    values = np.concatenate([np.array([floor]), *(seconds.ravel() for seconds in found)])
    values = np.unique(np.round(values[(values >= floor) & np.isfinite(values)], 12))
    values[0] = floor
    if len(values) > MOST_SYNCS:
        values = values[np.linspace(0, len(values) - 1, MOST_SYNCS).astype(int)]
    return np.array(values)

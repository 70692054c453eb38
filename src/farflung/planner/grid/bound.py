"""A lower bound on DT-FM's total over all grids.

For a limit t on hop costs, let the links of at most t split the workers into components. Cut the stages at
every hop that costs more than t: within a *run* of stages between cuts each pipeline stays in one
component, so every stage of a run has the same number of workers from each component. Now let nobody's sum
of gradient averages exceed D. A worker whose stage holds n of its component pays at least its n - 1
cheapest links within it and its replicas - n cheapest ones out of it; so D tells how many of its component
it needs in its stage. Hence

* the run that holds the neediest worker of a component has as many pipelines in it, and components share a
run
  only if their needs fit in the replicas;
* a run is no longer than the size of any component in it divided by that need;
* the runs together are as long as there are stages.

That gives the fewest runs, and one hop less than that costs more than t. The limits at which components
change are the edges of the minimum spanning tree. As the number of hops above t falls with t, the sum of
the hops is at least the sum over these limits of (step to the next limit) x (hops above it), beside the
cheapest link for each hop. The bound is the least, over D, of D plus twice that.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from farflung.planner.grid.objective import Costs, GridCosts

MOST_LEVELS = 48
MOST_SYNCS = 160
_ROUNDING = 1 - 1e-12  # of the sums, which are taken in another order elsewhere
Labels = NDArray[np.int64]


def lower_bound(costs: GridCosts) -> float:
    """Seconds below which no grid's total can be."""
    stages, replicas = costs.objective.stages, costs.objective.replicas
    if stages == 1:
        return float(costs.sync.sum(axis=1).max()) * _ROUNDING
    cheapest, levels = _levels(np.minimum(costs.hop, costs.hop.T))
    least = [_least_sync(costs.sync, labels, replicas) for _, labels in levels]
    syncs = _syncs(_least_sync(costs.sync, np.zeros(len(costs.sync), int), replicas), least)
    limits = np.append(syncs[1:], np.inf)
    hops = np.full(len(syncs), cheapest * (stages - 1))
    for (step, labels), needed in zip(levels, least, strict=True):
        hops += step * (_fewest_runs(_needs(needed, limits), labels, stages, replicas) - 1)
    return float((syncs + 2 * hops).min()) * _ROUNDING


def _levels(hop: Costs) -> tuple[float, list[tuple[float, Labels]]]:
    """The cheapest link, and for each limit but the last: the step to the next one, the components.

    Where there are too many limits, the steps of some neighbours are given to the dearest of them, whose
    components are the fewest.
    """
    edges = _spanning_tree(hop)
    labels = np.arange(len(hop))
    steps, found = [], []
    for (cost, one, other), (dearer, *_) in itertools.pairwise(edges):
        labels = np.where(labels == labels[other], labels[one], labels)
        if dearer > cost:
            steps.append(dearer - cost)
            found.append(labels)
    ends = np.unique(np.linspace(0, len(found), MOST_LEVELS + 1).astype(int)).tolist()
    groups = itertools.pairwise(ends)
    return edges[0][0], [(sum(steps[first:end]), found[end - 1]) for first, end in groups]


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


def _least_sync(sync: Costs, labels: Labels, replicas: int) -> Costs:
    """Workers x replicas: at least what a worker pays in a stage with n of its component (column n - 1)."""
    same = labels[:, None] == labels[None, :]
    inside = _cheapest_sums(np.where(same & ~np.eye(len(sync), dtype=bool), sync, np.inf), replicas - 1)
    outside = _cheapest_sums(np.where(same, np.inf, sync), replicas - 1)
    return inside + outside[:, ::-1]


def _cheapest_sums(costs: Costs, most: int) -> Costs:
    """Rows x (0 .. most): the sums of a row's cheapest entries, infinite where it has too few."""
    rows = np.sort(costs, axis=1)[:, :most]
    return np.hstack([np.zeros((len(costs), 1)), np.cumsum(rows, axis=1)])


def _syncs(whole: Costs, least: list[Costs]) -> NDArray[np.float64]:
    """What the dearest worker may pay at which something becomes possible: ascending, thinned if too many."""
    floor = float(whole[:, -1].max())
    values = np.concatenate([np.array([floor]), *(needed.ravel() for needed in least)])
    values = np.unique(np.round(values[(values >= floor) & np.isfinite(values)], 12))
    values[0] = floor
    chosen = (
        np.linspace(0, len(values) - 1, MOST_SYNCS).astype(int) if len(values) > MOST_SYNCS else slice(None)
    )
    return np.array(values[chosen])


def _needs(least: Costs, limits: NDArray[np.float64]) -> NDArray[np.int64]:
    """Limits x workers: the fewest of its component with which a worker stays below the limit."""
    return np.stack([(least < limit - 1e-9).argmax(axis=1) + 1 for limit in limits])


def _fewest_runs(needs: NDArray[np.int64], labels: Labels, stages: int, replicas: int) -> NDArray[np.float64]:
    """For each row of needs: in fewer runs than this the components cannot be packed, nor fill the stages.

    Sorted by how long a run each component allows, at least as many runs are at most that long as the
    components up to there need, and the runs' lengths must add up to the stages.
    """
    order = np.argsort(labels, kind="stable")
    _kept, starts = np.unique(labels[order], return_index=True)
    need = np.maximum.reduceat(needs[:, order], starts, axis=1)
    size = np.diff(np.append(starts, len(labels)))[np.newaxis, :]
    longest = np.minimum(size // need, stages)
    by_length = np.argsort(longest, axis=1, kind="stable")
    need, longest = np.take_along_axis(need, by_length, 1), np.take_along_axis(longest, by_length, 1)
    shared = -(-np.cumsum(need, axis=1) // replicas)
    alone = np.cumsum(2 * need > replicas, axis=1)
    runs = np.maximum(shared, alone)
    filled = (np.diff(runs, axis=1, prepend=0) * longest).sum(axis=1)
    more = -(-np.maximum(stages - filled, 0) // longest[:, -1])
    total = runs[:, -1] + more
    if (size % stages).any():
        total = np.maximum(total, 2)
    return total.astype(float)

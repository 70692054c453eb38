"""How few runs of stages hold all components, if every worker needs some of its own beside it.

The proof is in `bound`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farflung.planner.grid.components import Level
from farflung.planner.grid.objective import Costs

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

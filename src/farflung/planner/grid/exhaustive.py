"""Every way to part few workers into stages: with the exact wiring of each, the best grid there is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import factorial

from farflung.planner.grid.objective import Grid, GridCosts, GridObjective
from farflung.planner.grid.order import MOST_EXACT
from farflung.planner.grid.wiring import rewired

MOST_PARTITIONS = 1000


def partitions(objective: GridObjective) -> int | None:
    """How many ways there are, or None if too many to try, or stages too many to be ordered exactly."""
    stages, replicas = objective.stages, objective.replicas
    if stages > MOST_EXACT or stages * replicas > 64:
        return None
    ways = factorial(stages * replicas) // (factorial(replicas) ** stages * factorial(stages))
    return ways if ways <= MOST_PARTITIONS else None


def cheapest_of_all(costs: GridCosts) -> Grid:
    """The grid with the least total of all."""
    workers = tuple(range(len(costs.hop)))
    wired = (rewired(costs, stages) for stages in _parted(workers, costs.objective.replicas))
    return min(wired, key=lambda grid: (costs.total(grid), grid))


def _parted(workers: tuple[int, ...], size: int) -> Iterator[Grid]:
    """Every partition into groups of `size`; the first worker left always leads the next group."""
    if not workers:
        yield ()
        return
    for others in combinations(workers[1:], size - 1):
        rest = tuple(worker for worker in workers[1:] if worker not in others)
        for groups in _parted(rest, size):
            yield ((workers[0], *others), *groups)

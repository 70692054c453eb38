"""The search for a grid: banded layouts of kinds, then single workers, each time with the best wiring."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, count
from math import factorial

from benchmarks.dtfm_grid.anneal import annealed
from benchmarks.dtfm_grid.bands import BandSearch
from benchmarks.dtfm_grid.bound import lower_bound
from benchmarks.dtfm_grid.kinds import kinds_of

from farflung.planner.schedulers.evolutionary.grid import (
    Budget,
    Grid,
    GridCosts,
    GridObjective,
    grid_total,
    rewired,
)
from farflung.planner.schedulers.evolutionary.search import EVALUATIONS as EVOLVED
from farflung.planner.schedulers.evolutionary.search import MOST_SECONDS, evolve_grid
from farflung.planner.schedulers.open_path import MOST_EXACT
from farflung.plans import Topology

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


EVALUATIONS = 160_000
_BAND_SHARE = 0.5
_KEPT = 4
_PROVEN = 1 + 1e-9  # times the bound: nothing is left to find


@dataclass(frozen=True)
class GridResult:
    """A grid (worker numbers, one row a stage, one column a pipeline) with its total as it is wired.

    No grid can cost less than `lower_bound`. `evaluations` counts what was scored; `capped` says that the
    seconds ran out first, so that another run may end elsewhere.
    """

    grid: Grid
    total: float
    lower_bound: float
    evaluations: int
    capped: bool = False

    @property
    def gap(self) -> float:
        """The total as a multiple of the lower bound."""
        return self.total / self.lower_bound if self.lower_bound else 1.0


def place_in_grid(
    topology: Topology,
    objective: GridObjective,
    seed: int = 0,
    budget: int = EVALUATIONS,
    most_seconds: float = MOST_SECONDS,
) -> GridResult:
    """Place every worker of `topology` in the grid that is cheapest under DT-FM's objective, if found.

    Few workers are placed in every way there is; else the search ends early where the lower bound is
    reached. `budget` is in evaluations. Equal inputs give equal grids, unless `most_seconds` cap the
    search. Raises PlanError where the workers do not fill the grid.
    """
    costs = GridCosts.of(topology, objective)
    ways = partitions(objective)
    if ways is not None and ways <= budget:
        grid = cheapest_of_all(costs)
        total = grid_total(topology, grid, objective.gradient_gb, objective.activation_gb)
        return GridResult(grid, total, total, ways)
    purse, bound = Budget(budget, most_seconds), lower_bound(costs)
    enough = bound * _PROVEN
    found = _banded(costs, seed, purse, int(budget * _BAND_SHARE), enough)
    grid = _polished(costs, found, seed, purse, enough)
    total = grid_total(topology, grid, objective.gradient_gb, objective.activation_gb)
    return GridResult(grid, total, bound, purse.spent, purse.capped)


def evolve_with_bound(
    topology: Topology,
    objective: GridObjective,
    seed: int = 0,
    budget: int = EVOLVED,
    most_seconds: float = MOST_SECONDS,
) -> GridResult:
    """Return the grid of farflung's evolutionary scheduler, with the lower bound beside it."""
    found = evolve_grid(topology, objective, seed, budget, most_seconds)
    bound = lower_bound(GridCosts.of(topology, objective))
    return GridResult(found.grid, found.total, bound, found.evaluations, found.capped)


def _banded(costs: GridCosts, seed: int, purse: Budget, evaluations: int, enough: float) -> list[Grid]:
    """The best banded grids over the ways to sort workers into kinds, wired, best first."""
    shape = costs.objective
    found: list[Grid] = []
    sorted_into = kinds_of(costs)
    choices = sum(len(kinds.members) ** 2 for kinds in sorted_into)
    for kinds in sorted_into:
        search = BandSearch(kinds, shape.stages, shape.replicas, seed, purse)
        share = evaluations * len(kinds.members) ** 2 // choices
        found += [
            rewired(costs, tuple(map(tuple, layout.filled(kinds.members, shape.replicas))))
            for layout in search.run(share, _KEPT)
        ]
        if min(map(costs.total, found)) <= enough:
            break
    return sorted(set(found), key=lambda grid: (costs.total(grid), grid))


def _polished(costs: GridCosts, found: list[Grid], seed: int, purse: Budget, enough: float) -> Grid:
    """The best grid after annealing the best few, then fewer for longer, and the wiring of each anew."""
    field = found[:_KEPT] + _strewn(costs.objective, seed, purse.left)
    walks = count(seed)
    while costs.total(field[0]) > enough:
        each = purse.left // (2 * len(field)) if len(field) > 1 else purse.left
        field = [rewired(costs, annealed(costs, grid, next(walks), each, purse)) for grid in field]
        field.sort(key=lambda grid: (costs.total(grid), grid))
        if len(field) == 1:
            break
        field = field[: len(field) // 2]
    return field[0]


def _strewn(objective: GridObjective, seed: int, moves: int) -> list[Grid]:
    """Random grids to start from as well: more of them where a small grid leaves moves to spare."""
    cells = objective.stages * objective.replicas
    rng = random.Random(seed)
    return [
        tuple(tuple(order[at : at + objective.replicas]) for at in range(0, cells, objective.replicas))
        for order in (rng.sample(range(cells), cells) for _ in range(min(28, moves // (40 * cells**2))))
    ]

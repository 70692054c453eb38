"""The search for a grid: banded layouts of kinds, then single workers, each time with the best wiring."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.plan import Topology
from farflung.planner.grid.anneal import annealed
from farflung.planner.grid.bands import BandSearch
from farflung.planner.grid.bound import lower_bound
from farflung.planner.grid.budget import Budget
from farflung.planner.grid.kinds import kinds_of
from farflung.planner.grid.objective import Grid, GridCosts, GridObjective, grid_total
from farflung.planner.grid.wiring import rewired

EVALUATIONS = 120_000
MOST_SECONDS = 600.0
_BAND_SHARE = 0.4
_KEPT = 4


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

    `budget` is in evaluations. Equal inputs give equal grids, unless `most_seconds` cap the search. Raises
    PlanError where the workers do not fill the grid.
    """
    costs = GridCosts.of(topology, objective)
    purse = Budget(budget, most_seconds)
    found = _banded(costs, seed, purse, int(budget * _BAND_SHARE))
    grid = _polished(costs, found, seed, purse)
    total = grid_total(topology, grid, objective.gradient_gb, objective.activation_gb)
    return GridResult(grid, total, lower_bound(costs), purse.spent, purse.capped)


def _banded(costs: GridCosts, seed: int, purse: Budget, evaluations: int) -> list[Grid]:
    """The best banded grids over every way to sort workers into kinds, wired, best first."""
    shape = costs.objective
    levels = kinds_of(costs)
    found: list[Grid] = []
    for number, kinds in enumerate(levels):
        search = BandSearch(kinds, shape.stages, shape.replicas, seed, purse)
        share = (evaluations - purse.spent) // (len(levels) - number)
        found += [
            rewired(costs, tuple(map(tuple, layout.filled(kinds.members, shape.replicas))))
            for layout in search.run(share, _KEPT)
        ]
    return sorted(set(found), key=lambda grid: (costs.total(grid), grid))


def _polished(costs: GridCosts, found: list[Grid], seed: int, purse: Budget) -> Grid:
    """The best grid after annealing the best few, then fewer for longer, and the wiring of each anew."""
    field = found[:_KEPT]
    while True:
        each = purse.left // (2 * len(field)) if len(field) > 1 else purse.left
        field = [rewired(costs, annealed(costs, grid, seed, each, purse)) for grid in field]
        field.sort(key=lambda grid: (costs.total(grid), grid))
        if len(field) == 1:
            return field[0]
        field = field[: len(field) // 2]

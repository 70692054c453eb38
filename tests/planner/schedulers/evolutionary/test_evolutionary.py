from __future__ import annotations

import pytest
from benchmarks.dtfm_cases import universities
from tests.planner.schedulers.evolutionary.cases import all_grids, random_topology

from benchmarks.dtfm_grid import GridCosts, GridObjective, grid_total
from benchmarks.dtfm_grid import evolve_with_bound as evolve_grid
from farflung.errors import PlanError


def test_what_is_emitted_costs_what_is_claimed() -> None:
    fleet = random_topology(12, 3)
    found = evolve_grid(fleet, GridObjective(4, 3), seed=1, budget=130)
    assert found.total == grid_total(fleet, found.grid)
    assert found.lower_bound <= found.total
    assert found.evaluations == 130


def test_tiny_fleets_are_placed_as_well_as_can_be() -> None:
    fleet = random_topology(6, 7)
    costs = GridCosts.of(fleet, GridObjective(3, 2))
    optimum = min(costs.total(grid) for grid in all_grids(3, 2))
    assert evolve_grid(fleet, GridObjective(3, 2), budget=400).total == pytest.approx(optimum)


def test_two_universities() -> None:
    found = evolve_grid(universities(8), GridObjective(4, 4), budget=300)
    assert found.total == pytest.approx(found.lower_bound)


def test_seeds_work() -> None:
    fleet, objective = random_topology(16, 5), GridObjective(4, 4)
    runs = [evolve_grid(fleet, objective, seed, budget=110) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0].grid != runs[2].grid


def test_bounds() -> None:
    capped = evolve_grid(random_topology(64, 0), GridObjective(8, 8), most_seconds=0.1)
    assert capped.capped
    assert capped.evaluations < 5000
    with pytest.raises(PlanError, match="6 places"):
        evolve_grid(random_topology(5, 0), GridObjective(2, 3))

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.dtfm_cases import case, sited, spot
from benchmarks.dtfm_grid.bound import lower_bound
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.schedulers.evolutionary.cases import all_grids, random_topology, topology

from benchmarks.dtfm_grid import GridCosts, GridObjective, GridResult, grid_total, place_in_grid
from farflung.plans import Topology, read_topology

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "topologies"


def placed(fleet: Topology, stages: int, replicas: int, seed: int = 0, budget: int = 30_000) -> GridResult:
    result = place_in_grid(fleet, GridObjective(stages, replicas), seed, budget)
    assert result.total == grid_total(fleet, result.grid)
    assert result.lower_bound <= result.total
    assert not result.capped
    return result


@pytest.mark.parametrize(("number", "best"), [(1, 3.4398), (3, 16.0868), (5, 49.2184)])
def test_the_published_files(number: int, best: float) -> None:
    file = PUBLISHED / f"dtfm_case{number}.json"
    if not file.exists():
        pytest.skip("the published topologies are not beside this checkout")
    published, ours = read_topology(file), case(number)
    assert placed(published, 8, 8).total <= best + 5e-5
    assert [published.link(*pair) for pair in published.pairs()] == [
        ours.link(*pair) for pair in ours.pairs()
    ]


@pytest.mark.parametrize(
    ("number", "best", "bound"),
    [
        (1, 3.4398, 3.4398),
        (2, 31.6341, 31.6341),
        (3, 16.0868, 16.0868),
        (4, 34.802, 34.802),
        (5, 49.2184, 45.292),
    ],
)
def test_the_five_cases(number: int, best: float, bound: float) -> None:
    """Four are certified. In case 2, exchanges of single workers alone end at 49.5."""
    found = placed(case(number), 8, 8)
    assert found.total <= best + 5e-5
    assert found.lower_bound >= bound - 5e-5


def test_nobody_needs_to_declare_or_sort_sites() -> None:
    order = np.random.default_rng(4).permutation(64)
    fleet = spot()
    latency, bandwidth = np.array(fleet.latency_ms), np.array(fleet.bandwidth_mbps)
    shuffled = topology(latency[np.ix_(order, order)], bandwidth[np.ix_(order, order)])
    assert placed(shuffled, 8, 8).total <= 31.6342


@pytest.mark.parametrize(("stages", "replicas"), [(2, 2), (2, 3), (3, 2)])
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_tiny_fleets_are_placed_as_well_as_can_be(stages: int, replicas: int, seed: int) -> None:
    fleet = random_topology(stages * replicas, seed)
    costs = GridCosts.of(fleet, GridObjective(stages, replicas))
    optimum = min(costs.total(grid) for grid in all_grids(stages, replicas))
    assert lower_bound(costs) <= optimum
    assert placed(fleet, stages, replicas, budget=4000).total == pytest.approx(optimum, rel=1e-9)


def test_an_isolated_worker_costs_one_hop() -> None:
    """It ends up in the first or the last stage."""
    bandwidth = np.full((16, 16), 5000.0)
    bandwidth[6, :] = bandwidth[:, 6] = 50.0
    found = placed(topology(np.full((16, 16), 5.0), bandwidth), 4, 4, budget=10_000)
    assert found.gap == pytest.approx(1.0)
    assert 6 in found.grid[0] + found.grid[-1]


@pytest.mark.parametrize("sizes", [[5, 11], [3, 3, 10], [1, 15], [16]])
@pytest.mark.parametrize(("stages", "replicas"), [(2, 8), (4, 4), (16, 1), (1, 16)])
def test_sizes_that_do_not_divide(sizes: list[int], stages: int, replicas: int) -> None:
    sites = [f"site {number}" for number, size in enumerate(sizes) for _ in range(size)]
    same = np.eye(len(sizes), dtype=bool)
    fleet = sited("sizes", sites, np.where(same, 1.0, 40.0), np.where(same, 10_000.0, 500.0))
    found = placed(fleet, stages, replicas, budget=5000)
    if 1 in (stages, replicas):
        assert found.gap == pytest.approx(1.0)


def test_equal_inputs_give_equal_grids() -> None:
    fleet = random_topology(16, 5)
    assert placed(fleet, 4, 4, seed=3, budget=4000) == placed(fleet, 4, 4, seed=3, budget=4000)


def test_the_clock_is_a_cap_that_is_reported() -> None:
    result = place_in_grid(random_topology(64, 1), GridObjective(8, 8), budget=10**7, most_seconds=0.2)
    assert result.capped
    assert result.evaluations < 10**6


def test_one_worker() -> None:
    found = placed(random_topology(1, 0), 1, 1)
    assert (found.grid, found.total) == (((0,),), 0.0)

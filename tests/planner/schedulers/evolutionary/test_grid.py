from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.schedulers.evolutionary.cases import random_topology, topology

from benchmarks.dtfm_grid import GridCosts, GridObjective, grid_total
from farflung.errors import PlanError


def test_a_total_by_hand() -> None:
    """Two stages of two; one link is slow in one direction only."""
    latency = np.full((4, 4), 10.0)
    bandwidth = np.full((4, 4), 1000.0)
    bandwidth[1, 3] = 100.0
    fleet = topology(latency, bandwidth)
    # A pair of replicas at 1 Gbit/s: 2 * (0.01 + 0.5 * 8 / (1 * 2)) = 4.02; a hop: 0.01 + 0.25 * 8 = 2.01.
    assert grid_total(fleet, ((0, 1), (2, 3)), 0.5, 0.25) == pytest.approx(4.02 + 2 * 20.01)
    assert grid_total(fleet, ((0, 1), (3, 2)), 0.5, 0.25) == pytest.approx(4.02 + 2 * 2.01)
    assert grid_total(fleet, ((2, 3), (0, 1)), 0.5, 0.25) == pytest.approx(4.02 + 2 * 2.01)
    assert grid_total(fleet, ((1, 3), (0, 2)), 0.5, 0.25) == pytest.approx(40.02 + 2 * 2.01)


def test_one_stage_and_one_replica() -> None:
    fleet = topology(np.full((3, 3), 10.0), np.full((3, 3), 1000.0))
    assert grid_total(fleet, ((0, 1, 2),), 0.5, 0.25) == pytest.approx(2 * 2 * (0.01 + 0.5 * 8 / 3))
    assert grid_total(fleet, ((0,), (1,), (2,)), 0.5, 0.25) == pytest.approx(2 * 2 * 2.01)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), stages=st.integers(1, 4), replicas=st.integers(1, 4))
def test_the_matrices_say_the_same(seed: int, stages: int, replicas: int) -> None:
    fleet = random_topology(stages * replicas, seed)
    order = np.random.default_rng(seed).permutation(stages * replicas).reshape(stages, replicas)
    grid = tuple(map(tuple, order.tolist()))
    costs = GridCosts.of(fleet, GridObjective(stages, replicas))
    assert costs.total(grid) == pytest.approx(grid_total(fleet, grid), rel=1e-12)


@pytest.mark.parametrize("grid", [(), ((0, 1), (2,)), ((0, 1), (2, 2)), ((0, 1), (2, 4)), ((0, 1),)])
def test_a_grid_places_everybody_once(grid: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(PlanError, match="exactly once"):
        grid_total(random_topology(4, 0), grid)


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(PlanError, match="2 stages x 3 replicas are 6 places, and the topology has 4 workers"):
        GridCosts.of(random_topology(4, 0), GridObjective(2, 3))
    with pytest.raises(PlanError, match="at least 1 stage"):
        GridObjective(0, 3)
    with pytest.raises(PlanError, match="million GB"):
        GridObjective(1, 3, gradient_gb=float("nan"))

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.dtfm_grid.anneal import annealed
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.schedulers.evolutionary.cases import random_topology

from benchmarks.dtfm_grid import Grid, GridCosts, GridObjective
from farflung.planner.schedulers.evolutionary.grid import Budget, rewired


def shuffled(seed: int, stages: int, replicas: int) -> tuple[GridCosts, Grid]:
    costs = GridCosts.of(random_topology(stages * replicas, seed), GridObjective(stages, replicas))
    order = np.random.default_rng(seed).permutation(stages * replicas).reshape(stages, replicas)
    return costs, tuple(map(tuple, order.tolist()))


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), stages=st.integers(1, 5), replicas=st.integers(1, 4))
def test_annealing_and_wiring_never_lose(seed: int, stages: int, replicas: int) -> None:
    costs, grid = shuffled(seed, stages, replicas)
    for better in (annealed(costs, grid, seed, 500, Budget(500, 60)), rewired(costs, grid)):
        assert sorted(sum(better, ())) == list(range(stages * replicas))
        assert costs.total(better) <= costs.total(grid) + 1e-9


def test_the_walk_ends_with_the_purse() -> None:
    costs, grid = shuffled(1, 4, 4)
    purse = Budget(100, 60)
    annealed(costs, grid, 0, 10_000, purse)
    assert purse.spent == 156  # one cooling of 10,000 / 64 moves


def test_an_obvious_exchange_is_found() -> None:
    costs, grid = shuffled(3, 4, 4)
    assert costs.total(annealed(costs, grid, 0, 5000, Budget(5000, 60))) < 0.9 * costs.total(grid)
    assert costs.total(annealed(costs, grid, 0, 0, Budget(0, 60))) == pytest.approx(costs.total(grid))

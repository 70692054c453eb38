from __future__ import annotations

import numpy as np
import pytest
from benchmarks.dtfm_grid.bound import MOST_LEVELS, levels_of, lower_bound
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.schedulers.evolutionary.cases import random_topology, topology

from benchmarks.dtfm_grid import GridCosts, GridObjective
from farflung.planner.schedulers.evolutionary.grid import rewired


def test_components_grow_with_the_limit() -> None:
    hop = np.array([[0, 1, 4, 9], [1, 0, 3, 9], [4, 3, 0, 7], [9, 9, 7, 0]], float)
    cheapest, levels = levels_of(hop)
    assert cheapest == 1
    assert [level.step for level in levels] == [2, 4]
    assert [sorted(group.tolist() for group in level.groups) for level in levels] == [
        [[0, 1], [2], [3]],
        [[0, 1, 2], [3]],
    ]


def test_many_levels_are_merged() -> None:
    hop = np.random.default_rng(0).uniform(1, 9, (100, 100))
    hop = np.minimum(hop, hop.T)
    cheapest, levels = levels_of(hop)
    assert len(levels) == MOST_LEVELS
    reach = [hop[one, other] for one in range(100) for other in range(one)]
    assert cheapest == min(reach)
    assert cheapest < cheapest + sum(level.step for level in levels) < max(reach)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), stages=st.integers(1, 6), replicas=st.integers(1, 5))
def test_no_grid_is_below_the_bound(seed: int, stages: int, replicas: int) -> None:
    """Grids of any order and grids by distance, both filled by rows and by columns, wired well."""
    costs = GridCosts.of(
        random_topology(stages * replicas, seed, noise=0.01 * (seed % 3)), GridObjective(stages, replicas)
    )
    bound = lower_bound(costs)
    cells = np.random.default_rng(seed).permutation(stages * replicas)
    by_site = np.lexsort((np.arange(stages * replicas), costs.hop[0]))
    for order in (cells, by_site):
        for grid in (order.reshape(stages, replicas), order.reshape(replicas, stages).T):
            assert bound <= costs.total(rewired(costs, tuple(map(tuple, grid.tolist()))))


def test_one_pipeline_is_a_path() -> None:
    """With one replica the bound is twice a minimum spanning tree: exact on a line."""
    place = np.random.default_rng(0).permutation(9)
    latency = 10.0 * np.abs(place[:, None] - place[None, :])
    costs = GridCosts.of(topology(latency, np.full((9, 9), 1e6)), GridObjective(9, 1, 0.0, 0.0))
    assert lower_bound(costs) == pytest.approx(2 * 8 * 0.01)

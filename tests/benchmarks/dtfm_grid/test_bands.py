from __future__ import annotations

import itertools

import numpy as np
import pytest
from benchmarks.dtfm_cases import instances, universities
from benchmarks.dtfm_grid.bands import BandSearch, Layout
from benchmarks.dtfm_grid.kinds import Kinds, kinds_of
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.dtfm_grid import GridCosts, GridObjective
from farflung.planner.schedulers.evolutionary.grid import Budget, rewired


def test_a_band_is_filled_pipeline_by_pipeline() -> None:
    layout = Layout(0.0, (2, 1), (0, 0, 1, 1, 1, 2))
    assert layout.filled([[5, 6], [7, 8, 9], [4]], 2) == [[5, 7], [6, 8], [9, 4]]


def test_one_site_a_pipeline_in_a_data_centre() -> None:
    costs = GridCosts.of(instances(), GridObjective(8, 8))
    best, *_ = BandSearch(kinds_of(costs)[0], 8, 8, 0, Budget(20_000, 60)).run(20_000, 1)
    assert best.heights == (8,)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), stages=st.integers(1, 12), replicas=st.integers(1, 4))
def test_layouts_are_whole(seed: int, stages: int, replicas: int) -> None:
    """Every kind keeps its size, and the total is that of the grid under the kinds' mean costs."""
    rng = np.random.default_rng(seed)
    groups = np.sort(rng.integers(0, 3, stages * replicas))
    members = tuple(tuple(np.flatnonzero(groups == kind).tolist()) for kind in np.unique(groups))
    count = len(members)
    kinds = Kinds(members, *np.round(rng.uniform(1, 9, (2, count, count)), 3))
    kind_of = {worker: kind for kind, group in enumerate(members) for worker in group}
    for layout in BandSearch(kinds, stages, replicas, seed, Budget(600, 60)).run(600, 3):
        grid = layout.filled(members, replicas)
        assert sum(layout.heights) == stages
        assert sorted(itertools.chain.from_iterable(grid)) == list(range(stages * replicas))
        at = [kind_of[worker] for worker in range(stages * replicas)]
        costs = GridCosts(
            GridObjective(stages, replicas), kinds.sync[np.ix_(at, at)], kinds.hop[np.ix_(at, at)]
        )
        np.fill_diagonal(costs.sync, 0)
        wired = rewired(costs, tuple(map(tuple, grid)))
        assert costs.total(wired) <= layout.total + 1e-9


def test_equal_seeds_give_equal_layouts() -> None:
    kinds = kinds_of(GridCosts.of(universities(16), GridObjective(8, 4)))[0]
    runs = [BandSearch(kinds, 8, 4, 5, Budget(2000, 60)).run(2000, 4) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0][0].total == pytest.approx(min(layout.total for layout in runs[0]))

from __future__ import annotations

import itertools

import numpy as np
import pytest

from farflung.planner.schedulers.open_path import MOST_EXACT, cheapest_path


def length(costs: np.ndarray, path: list[int]) -> float:
    return float(sum(costs[one, other] for one, other in itertools.pairwise(path)))


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_the_path_is_the_shortest(count: int) -> None:
    for seed in range(10):
        costs = np.random.default_rng(seed).uniform(1, 9, (count, count))
        path = cheapest_path(costs)
        assert sorted(path) == list(range(count))
        best = min(length(costs, list(order)) for order in itertools.permutations(range(count)))
        assert length(costs, path) == pytest.approx(best)


def test_a_long_path_is_close() -> None:
    """Points on a line, shuffled: the way along the line is found."""
    place = np.random.default_rng(1).permutation(3 * MOST_EXACT)
    costs = np.abs(place[:, None] - place[None, :]).astype(float)
    assert length(costs, cheapest_path(costs)) == len(place) - 1

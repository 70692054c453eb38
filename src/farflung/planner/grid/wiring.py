"""The best wiring of given stages: their order, and whom each worker passes activations on to."""

from __future__ import annotations

import numpy as np

from farflung.planner.grid.matching import bottleneck, pairs
from farflung.planner.grid.objective import Costs, Grid, GridCosts
from farflung.planner.grid.order import cheapest_path

MOST_REORDERED = 64


def rewired(costs: GridCosts, grid: Grid) -> Grid:
    """The stages of `grid` in the cheapest order, each hop an exact bottleneck assignment.

    A hop's cost depends on its two stages alone, so the assignments chain freely: a column goes on with its
    partner, whatever came before. Above `MOST_REORDERED` stages the order stays.
    """
    if 1 < len(grid) <= MOST_REORDERED:
        least = np.array([[_between(costs.hop, one, other) for other in grid] for one in grid])
        now = float(np.diagonal(least, 1).sum())
        path = cheapest_path(least)
        if least[path[:-1], path[1:]].sum() < now - 1e-12:
            grid = tuple(grid[stage] for stage in path)
    stages = [grid[0]]
    for stage in grid[1:]:
        _, partners = pairs(costs.hop[np.ix_(stages[-1], stage)].tolist())
        stages.append(tuple(stage[partner] for partner in partners))
    return tuple(stages)


def _between(hop: Costs, one: tuple[int, ...], other: tuple[int, ...]) -> float:
    if one == other:
        return 0.0
    ones = [1] * len(one)
    return bottleneck(hop[np.ix_(one, other)].tolist(), ones, ones)[0]

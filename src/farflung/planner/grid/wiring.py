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
    partner, whatever came before. Never worse than `grid`. Above `MOST_REORDERED` stages the order stays.
    """
    if 1 < len(grid) <= MOST_REORDERED:
        hops = least_hops(costs, grid)
        path = cheapest_path(hops)
        if hops[path[:-1], path[1:]].sum() < np.diagonal(hops, 1).sum() - 1e-12:
            grid = tuple(grid[stage] for stage in path)
    stages = [grid[0]]
    for stage in grid[1:]:
        _, partners = pairs(costs.hop[np.ix_(stages[-1], stage)].tolist())
        stages.append(tuple(stage[partner] for partner in partners))
    return tuple(stages)


def least_hops(costs: GridCosts, stages: Grid) -> Costs:
    """Stages x stages: the seconds of a hop's slowest pipeline where it is wired as well as can be."""
    count, ones = len(stages), [1] * len(stages[0])
    found = np.zeros((count, count))
    for one in range(count):
        for other in range(one + 1 if costs.symmetric else 0, count):
            if one != other:
                hop = costs.hop[np.ix_(stages[one], stages[other])].tolist()
                found[one, other] = bottleneck(hop, ones, ones)[0]
    return np.maximum(found, found.T) if costs.symmetric else found

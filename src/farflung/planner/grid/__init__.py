"""A grid of stages x replicas for one model: DT-FM's objective, and a search that is exact where it can be.

`objective` says what a grid costs and `search` looks for the cheapest: `kinds` sorts workers by what links
they have, `bands` lays whole kinds out, `anneal` moves single workers, `wiring` (over `matching` and
`order`) finds the best pipelines through given stages, and `bound` says how much better any grid could be.
"""

from farflung.planner.grid.objective import Grid, GridCosts, GridObjective, grid_total
from farflung.planner.grid.search import GridResult, place_in_grid

__all__ = ["Grid", "GridCosts", "GridObjective", "GridResult", "grid_total", "place_in_grid"]

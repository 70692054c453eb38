"""A grid of stages x replicas for one model: DT-FM's objective, a search, and a bound to hold it against.

The objective and the best wiring of given stages are the evolutionary scheduler's (its `grid` module).
`search` looks for the cheapest grid: `kinds` sorts workers by their links, `bands` lays out whole kinds,
`anneal` moves single workers; small fleets are searched exhaustively. `bound` is below all grids.
"""

from benchmarks.dtfm_grid.search import GridResult, evolve_with_bound, place_in_grid

from farflung.planner.schedulers.evolutionary.grid import Grid, GridCosts, GridObjective, grid_total

__all__ = [
    "Grid",
    "GridCosts",
    "GridObjective",
    "GridResult",
    "evolve_with_bound",
    "grid_total",
    "place_in_grid",
]

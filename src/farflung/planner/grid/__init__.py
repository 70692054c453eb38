"""A grid of stages x replicas for one model: DT-FM's objective, a search, and a bound to hold it against.

`objective` says what a grid costs and `search` looks for the cheapest: `kinds` sorts workers by the links
they have, `bands` lays whole kinds out (priced by `compositions`), `anneal` moves single workers, `wiring`
(over `matching` and `order`) finds the best pipelines through given stages. `bound` says what no grid can
beat (over `components`, `packing` and `spreading`); `exhaustive` tries every
grid of few workers, and `budget` says what a search may spend.
"""

from farflung.planner.grid.objective import Grid, GridCosts, GridObjective, grid_total
from farflung.planner.grid.search import GridResult, place_in_grid

__all__ = ["Grid", "GridCosts", "GridObjective", "GridResult", "grid_total", "place_in_grid"]

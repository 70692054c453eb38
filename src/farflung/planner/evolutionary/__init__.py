"""DT-FM's evolutionary scheduler (arXiv 2206.01288).

`search` finds the grid of stages x replicas, with the local search of `cycles`; `scheduler` makes a plan of
it.
"""

from farflung.planner.evolutionary.scheduler import evolutionary
from farflung.planner.evolutionary.search import evolve_grid

__all__ = ["evolutionary", "evolve_grid"]

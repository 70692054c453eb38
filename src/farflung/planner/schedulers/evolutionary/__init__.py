"""DT-FM's evolutionary scheduler (arXiv 2206.01288).

`search` finds the `grid` of stages x replicas, and `scheduler` turns it into a plan.
"""

from farflung.planner.schedulers.evolutionary.scheduler import evolutionary
from farflung.planner.schedulers.evolutionary.search import evolve_grid

__all__ = ["evolutionary", "evolve_grid"]

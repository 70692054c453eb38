"""What no plan can undercut.

`pipelines` bounds the simulated step of every plan of one pipeline and has the proof; it looks at rows of
operators between `gates` in the light of what `workers` can hold (`rows`), one row at a time (`interval`).
"""

from farflung.planner.bounds.pipelines import lower_bound_seconds

__all__ = ["lower_bound_seconds"]

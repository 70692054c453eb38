"""Lower bounds on the step time of all plans.

`pipelines` bounds the simulated step of every plan with one pipeline, and has the proof. It examines rows of
operators between `gates` (`rows`), one row at a time (`interval`), with the `workers` that could run them.
"""

from farflung.planner.bounds.pipelines import lower_bound_seconds

__all__ = ["lower_bound_seconds"]

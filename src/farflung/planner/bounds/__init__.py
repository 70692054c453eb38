"""What no plan can undercut.

`pipelines` bounds the simulated step of every plan of one pipeline and has the proof; it looks at rows of
operators (`gates`, `row`) in the light of what workers can hold (`items`, `pieces`), one row at a time
(`interval`, over the graph of `ways`). `certain` says what a cut sends whatever the other cuts are.
"""

from farflung.planner.bounds.pipelines import lower_bound_seconds

__all__ = ["lower_bound_seconds"]

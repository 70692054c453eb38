"""Plan a workload on a topology: the schedulers, their shared tools, and the placement of their answers.

`cutting.balanced` plans without a topology. Every scheduler is a function (Topology, Workload, Options) ->
Schedule in a module with its name.
"""

from farflung.planner.cutting.balanced import plan_graph, plan_job
from farflung.planner.placing import PlannedJob, place

__all__ = ["PlannedJob", "place", "plan_graph", "plan_job"]

"""From a workload and a topology to a plan: schedulers, what they share, and how their answers are placed.

`balanced` plans where no topology is known. Every other scheduler is a function (Topology, Workload, Options)
-> Schedule in a file with its name.
"""

from farflung.planner.cutting.balanced import plan_graph, plan_job
from farflung.planner.placing import PlannedJob, place

__all__ = ["PlannedJob", "place", "plan_graph", "plan_job"]

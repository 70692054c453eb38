"""From an OP-DAG and the workers at hand to a plan. Today: equal-compute contiguous segments."""

from farflung.planner.equal_compute import PlannedJob, place, plan_graph, plan_job

__all__ = ["PlannedJob", "place", "plan_graph", "plan_job"]

"""From an OP-DAG and the workers at hand to a plan. Today: equal-compute contiguous segments."""

from farflung.planner.equal_compute import PlannedJob, plan_graph, plan_job

__all__ = ["PlannedJob", "plan_graph", "plan_job"]

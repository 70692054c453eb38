"""A plan as data: which worker runs which segment, what crosses between them, how far ahead to run."""

from farflung.plan.plan import FEEDER, Edge, Placement, Plan

__all__ = ["FEEDER", "Edge", "Placement", "Plan"]

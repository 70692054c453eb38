"""The exact scheduler for few workers: `scheduler`, over all ordered subsets of them (`subsets`)."""

from farflung.planner.schedulers.exact.scheduler import exact

__all__ = ["exact"]

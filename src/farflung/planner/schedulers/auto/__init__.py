"""The scheduler `auto`: structured moves over orders of workers, judged by the simulator."""

from farflung.planner.schedulers.auto.scheduler import auto

__all__ = ["auto"]

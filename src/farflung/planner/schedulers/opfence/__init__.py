"""FusionLLM's OP-Fence and a variant: `scheduler` orders workers by their `communities`."""

from farflung.planner.schedulers.opfence.scheduler import opfence, opfence_plus

__all__ = ["opfence", "opfence_plus"]

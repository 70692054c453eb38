"""FusionLLM's OP-Fence, and more than it: `scheduler` orders workers by their `communities`."""

from farflung.planner.schedulers.opfence.scheduler import opfence, opfence_plus

__all__ = ["opfence", "opfence_plus"]

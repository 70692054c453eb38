"""FusionLLM's OP-Fence, and more than it: `scheduler`, which orders workers (`fence`) by `communities`."""

from farflung.planner.opfence.scheduler import opfence, opfence_plus

__all__ = ["opfence", "opfence_plus"]

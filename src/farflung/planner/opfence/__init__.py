"""FusionLLM's OP-Fence: `scheduler`, which orders workers (`fence`) by their `communities`."""

from farflung.planner.opfence.scheduler import opfence

__all__ = ["opfence"]

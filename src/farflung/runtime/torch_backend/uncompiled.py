"""Keeps torch's compiler out of a process that compiles nothing: over a second of its first job, and memory.

Shapes on the meta device are often computed in Python, by functions that tell `torch._dynamo` not to look
into them. For that they import it at their first call, unless they are marked as told (`torch._compile`).
Where another torch marks them otherwise, it is imported as ever.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import FunctionType

_MARK = "__dynamo_disable"


def keep_compiler_out() -> None:
    """Mark the functions by which torch computes shapes, if nobody has imported its compiler before."""
    if "torch._dynamo" in sys.modules:
        return
    import torch._decomp.decompositions
    import torch._meta_registrations
    import torch._refs.nn.functional
    import torch._refs.special

    refs, others = torch._refs, (torch._decomp.decompositions, torch._meta_registrations)
    modules = (refs, refs.nn.functional, refs.special, *others)
    _mark([value for module in modules for value in vars(module).values()])


def _mark(found: list[object]) -> None:
    """Mark functions, and those that they are wrapped around."""
    while found:
        function = found.pop()
        if isinstance(function, FunctionType) and not hasattr(function, _MARK):
            setattr(function, _MARK, function)
            for cell in function.__closure__ or ():
                with suppress(ValueError):  # nothing is in it yet
                    found.append(cell.cell_contents)

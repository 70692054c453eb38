"""Does the graph hold for every size of batch? Export settles on one in silence where forward asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from traceback import FrameSummary
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind
from torch.utils._sympy.numbers import int_oo

from farflung.errors import CaptureError
from farflung.opdag.capture.failures import is_of_torch
from farflung.opdag.capture.verdicts import Remarks

_LEAST = 2


def check_batch(
    exported: torch.export.ExportedProgram, names: Sequence[str], fixed_at: str, remarks: Remarks
) -> None:
    """Refuse a graph whose batch became a fixed number, and remark where it holds for some sizes only.

    Raises
    ------
    CaptureError
        Naming the input, and `fixed_at` as the line that fixed its size.
    """
    inputs = _inputs(exported)
    for name, node in zip(names, inputs, strict=True):
        size = node.meta["val"].shape[0]
        if not isinstance(size, torch.SymInt) or not size.node.expr.free_symbols:
            raise CaptureError(
                f"forward works for batches of {int(size)} only: it fixes the first size of input {name!r}"
                f" ({fixed_at}): take sizes from x.shape[0]",
                "batch-size",
            )
    for symbol, bounds in exported.range_constraints.items():
        if not str(symbol).startswith("s"):  # others depend on data, and are refused where they are used
            continue
        least, most = int(bounds.lower), bounds.upper
        if least > _LEAST or most is not int_oo:
            words = f"{least} or more" if most is int_oo else f"{least} to {most}"
            where = _line_of_guard(inputs[0])
            remarks.add("batch-size", f"forward takes a branch that holds for {words} samples only{where}")


def _inputs(exported: torch.export.ExportedProgram) -> list[fx.Node]:
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    pairs = zip(placeholders, exported.graph_signature.input_specs, strict=True)
    return [node for node, spec in pairs if spec.kind is InputKind.USER_INPUT]


def _line_of_guard(node: fx.Node) -> str:
    """` (file:line)` of the first decision about a size that the user's own code made, or nothing."""
    environment: Any = node.meta["val"].fake_mode.shape_env
    for guard in environment.guards if environment is not None else ():
        frame = guard.sloc.framework_loc
        if isinstance(frame, FrameSummary) and not is_of_torch(frame.filename):
            return f" ({frame.filename}:{frame.lineno})"
    return ""

"""Refuse or remark on what export would silently get wrong.

This includes batch sizes: export silently fixes a size if forward's code depends on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from traceback import FrameSummary
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.utils._sympy.numbers import int_oo

from farflung.errors import CaptureError
from farflung.opdag.capture.failures import here, is_of_torch
from farflung.opdag.capture.lint_results import Remarks
from farflung.opdag.graph import Graph, Ref


@contextmanager
def forbid_buffer_assignment() -> Iterator[None]:
    """Refuse `self.buffer = value` in forward: export drops it, and the buffer would never change."""
    original = nn.Module.__setattr__

    def assign(self: nn.Module, name: str, value: object) -> None:
        caller = sys._getframe(1).f_code.co_filename  # export itself replaces buffers by fake ones
        buffer = self.__dict__.get("_buffers", {}).get(name)
        if buffer is not None and value is not buffer and not is_of_torch(caller):
            raise CaptureError(
                f"buffer {name!r} is assigned ({here()}): write self.{name}.copy_(...)", "buffers"
            )
        original(self, name, value)  # type: ignore[arg-type]

    nn.Module.__setattr__ = assign  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__setattr__ = original  # type: ignore[method-assign]


@contextmanager
def forbid_conversions() -> Iterator[None]:
    """Let `module.to(dtype)` in forward do nothing where the module is of that type; refuse any other."""
    original = nn.Module._apply

    def convert(self: nn.Module, made: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        for tensor in (*self.parameters(recurse), *self.buffers(recurse)):
            as_asked = made(tensor)
            if (as_asked.dtype, as_asked.device) != (tensor.dtype, tensor.device):
                raise CaptureError(
                    f"forward converts the parameters of a {type(self).__name__} ({here()}): do so before"
                    " training, or cast them where they are used",
                    "python-state",
                )
        return self

    nn.Module._apply = convert  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]


@contextmanager
def watch_checkpointing(remarks: Remarks) -> Iterator[None]:
    """Remark on activation checkpointing: the graph contains the plain ops, so it saves no memory.

    Both of torch's variants are replaced below `checkpoint`, which user code often imports by name.
    """

    def note() -> None:
        remarks.add("checkpointing", f"activation checkpointing is dropped by capture ({here()})")

    def run(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        note()
        return function(*args)

    def plain(*_: Any, **__: Any) -> Iterator[None]:
        note()
        yield

    internals = {
        "CheckpointFunction": SimpleNamespace(apply=run),
        "_checkpoint_without_reentrant_generator": plain,
    }
    originals = {name: getattr(torch.utils.checkpoint, name) for name in internals}
    try:
        for name, replacement in internals.items():
            setattr(torch.utils.checkpoint, name, replacement)
        yield
    finally:
        for name, original in originals.items():
            setattr(torch.utils.checkpoint, name, original)


_LEAST = 2


def check_batch(
    exported: torch.export.ExportedProgram, names: Sequence[str], fixed_at: str, remarks: Remarks
) -> None:
    """Refuse a graph whose batch size is fixed, and remark if it holds for some sizes only.

    Raises
    ------
    CaptureError
        The batch size is fixed; the message names the input, and `fixed_at` as the line that fixed it.
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
        if not str(symbol).startswith(
            "s"
        ):  # other symbols depend on data, and are refused where they are used
            continue
        least, most = int(bounds.lower), bounds.upper
        if least > _LEAST or most is not int_oo:
            words = f"{least} or more" if most is int_oo else f"{least} to {most}"
            where = _line_of_guard(inputs[0])
            remarks.add("batch-size", f"forward takes a branch that holds for {words} samples only{where}")


def check_masks(graph: Graph, dependent: str | None) -> None:
    """Refuse `x[mask]`, which export accepts where it takes the result's size for another one.

    Raises
    ------
    CaptureError
        The graph has such a node. `dependent` is the reason, with the line, if that was observed.
    """
    for node in graph.nodes:
        indices = node.arguments.get("indices") if node.op == "aten.index.Tensor" else None
        refs = [one for one in indices if isinstance(one, Ref)] if isinstance(indices, list) else []
        if any(graph.values[ref.id].dtype in ("bool", "uint8") for ref in refs):
            words = dependent or "the size of x[mask] depends on a tensor's data: use torch.where or a mask"
            raise CaptureError(words, "control-flow")


def _inputs(exported: torch.export.ExportedProgram) -> list[fx.Node]:
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    pairs = zip(placeholders, exported.graph_signature.input_specs, strict=True)
    return [node for node, spec in pairs if spec.kind is InputKind.USER_INPUT]


def _line_of_guard(node: fx.Node) -> str:
    """` (file:line)` of the first decision about a size in the user's code, or an empty string."""
    environment: Any = node.meta["val"].fake_mode.shape_env
    for guard in environment.guards if environment is not None else ():
        frame = guard.sloc.framework_loc
        if isinstance(frame, FrameSummary) and not is_of_torch(frame.filename):
            return f" ({frame.filename}:{frame.lineno})"
    return ""

"""Make an exported program functional, and decompose ops that the opset lacks if torch can.

Only those are decomposed: decomposing everything to Core ATen loses `no_grad` and `detach`. Ops that torch
composes of others (`einsum`, `instance_norm`) become these, with the same bits. For some kernels (`glu`,
`softshrink`) torch has a form in plain ops, whose last bits may differ. The self-check compares both with the
user's module.

A program without such ops is not traced again, because that takes longer than the export and gives the same
graph (`tests/opdag/capture/test_decompose.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from farflung.opdag.capture.missing_ops import leaves_nothing, missing_calls

_WRITTEN_ALIKE = {
    torch.ops.aten.chunk.default,
    torch.ops.aten.contiguous.default,
    torch.ops.aten.flatten.using_ints,
    torch.ops.aten.reshape.default,
    torch.ops.aten.to.device,
    torch.ops.aten.to.dtype,
    torch.ops.aten.to.dtype_layout,
}
"""Views that torch composes of others; `calls` writes the composition."""

Decompositions = Mapping[torch._ops.OperatorBase, Callable[..., object]]


def functional(exported: ExportedProgram) -> ExportedProgram:
    """The program without ops that change their arguments, in ops of the opset as far as possible."""
    chosen: dict[torch._ops.OperatorBase, Callable[..., object]] = {}
    plain: ExportedProgram | None = None
    while True:
        program = exported.run_decompositions(chosen)
        plain = plain or program
        if _nested(program) > _nested(plain):
            return plain  # the op itself is a clearer reason to refuse than its parts
        lacking = {node.target for node in missing_calls(program.graph.nodes)} - chosen.keys()
        more = _decompositions_of([op for op in lacking if isinstance(op, torch._ops.OpOverload)])
        if not more:
            return program
        chosen |= more


def is_functional(exported: ExportedProgram) -> bool:
    """Whether `functional` would return the same program: its ops are in the opset, and change nothing."""
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    return not missing_calls(nodes) and all(_stays(node) for node in nodes)


def _stays(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem or leaves_nothing(node)
    if target._schema.is_mutable:
        return False
    is_view = any(entry.alias_info is not None for entry in target._schema.arguments)
    return not is_view or target in _WRITTEN_ALIKE or not target._can_decompose()


def _nested(program: ExportedProgram) -> int:
    return sum(isinstance(node.target, torch._ops.HigherOrderOperator) for node in program.graph.nodes)


def _decompositions_of(ops: Collection[torch._ops.OpOverload]) -> Decompositions:
    """Decompositions of ops that have one, except random ops, which would draw other numbers than eager."""
    if not ops:
        return {}
    known = {**torch.export.default_decompositions().materialize(), **_OWN}
    drawn = torch.Tag.nondeterministic_seeded
    return {op: known[op] for op in ops if op in known and drawn not in op.tags}


def _max_pool1d(
    self: Tensor,
    kernel_size: list[int],
    stride: list[int] | None = None,
    padding: list[int] | None = None,
    dilation: list[int] | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """Pool an image of one row."""
    made = torch.ops.aten.max_pool2d.default(
        self.unsqueeze(-2),
        [1, *kernel_size],
        [1, *(stride or kernel_size)],
        [0, *(padding or [0])],
        [1, *(dilation or [1])],
        ceil_mode,
    )
    result: Tensor = made.squeeze(-2)
    return result


def _clamp(self: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """Pass the whole gradient at the limits."""
    if min is not None:
        self = torch.where(self < min, min, self)
    return self if max is None else torch.where(self > max, max, self)


_OWN: Decompositions = {
    torch.ops.aten.max_pool1d.default: _max_pool1d,
    torch.ops.aten.clamp.Tensor: _clamp,
    torch.ops.aten.clamp_min.Tensor: _clamp,
    torch.ops.aten.clamp_max.Tensor: lambda self, max: _clamp(self, max=max),
    torch.ops.aten.isnan.default: lambda self: self != self,
}

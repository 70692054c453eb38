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
from torch import fx
from torch.export import ExportedProgram

from farflung.opdag.capture.compositions import DRAWN, compositions
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
    """Decompositions of ops that have one, except of random ops that would draw other numbers than eager."""
    if not ops:
        return {}
    known = {**torch.export.default_decompositions().materialize(), **compositions()}
    drawn = torch.Tag.nondeterministic_seeded
    return {op: known[op] for op in ops if op in known and (drawn not in op.tags or op in DRAWN)}

"""Forward passes whose backward pass has two parts: gradients to send first, those of parameters later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from farflung.opdag.graph import Node
from farflung.opdag.segment import Segment
from farflung.runtime.torch_backend.codegen import Program, Writer, execute
from farflung.runtime.torch_backend.device import ON_HOST, Place

DETACHED, LEAF = "d", "w"
"""How a join reads a weight: as a tensor without gradient, or as a leaf that the backward pass reaches."""


@dataclass(frozen=True)
class Joint:
    """What the code of a join does besides running its node.

    Parameters
    ----------
    node
        Number of the node.
    reads
        For each weight `DETACHED` or `LEAF`.
    keeps
        Values needed to compute the gradients of its weights.
    makes
        Values whose gradients are needed.
    """

    node: int
    reads: Mapping[int, str]
    keeps: tuple[int, ...]
    makes: tuple[int, ...]


class Split(NamedTuple):
    """What a split forward pass returns: tensors in the orders of `SplitProgram`."""

    results: tuple[Tensor, ...]
    kept: tuple[Tensor, ...]
    edges: tuple[GradientEdge, ...]
    leaves: tuple[Tensor, ...]
    made: tuple[Tensor, ...]


class SplitProgram(Program):
    """A `Program` in training, where each join reads copies of its weights that share their memory.

    Computations on parameters alone have a tape of their own. `copies` are weights of the state, each with
    how it is read; `split` expects such copies after the state. `kept`, `edges` and `leaves` are the values
    of its results: what joins save (without gradient), edges of what they make, and weights that are read as
    leaves. `made` are weights that joins read and nodes make, with their tape.
    """

    def __init__(
        self,
        segment: Segment,
        batch: int,
        received: Iterable[int],
        joints: Sequence[Joint],
        place: Place = ON_HOST,
    ) -> None:
        super().__init__(segment, batch, True, place)
        reads = dict.fromkeys((how, value) for joint in joints for value, how in joint.reads.items())
        in_state = set(self.state)
        self.copies = [(how, value) for how, value in reads if value in in_state]
        self.leaves = [value for how, value in reads if how == LEAF]
        self.made = sorted({value for _, value in reads if value not in in_state})
        self.kept = list(dict.fromkeys(value for joint in joints for value in joint.keeps))
        self.edges = [value for joint in joints for value in joint.makes]
        writer = _SplitWriter(segment, batch, frozenset(received), joints, place)
        self.source = writer.write(self)
        self.split: Callable[[Sequence[Tensor], Sequence[Tensor], int], Split] = execute(
            self.source, segment.number, writer.namespace
        )


class _SplitWriter(Writer):
    def __init__(
        self,
        segment: Segment,
        batch: int,
        received: frozenset[int],
        joints: Sequence[Joint],
        place: Place,
    ) -> None:
        super().__init__(segment, batch, True, place)
        self._received = received
        self._joints = {joint.node: joint for joint in joints}
        self._reads: Mapping[int, str] = {}
        self._reads_by_kind = {(how, value) for joint in joints for value, how in joint.reads.items()}
        self._saved: set[int] = set()
        self.namespace |= {"edge": _edge, "Split": Split}

    def _keep(self, program: Program) -> set[int]:
        assert isinstance(program, SplitProgram)
        return {*super()._keep(program), *program.made}

    def _given(self, program: Program) -> str:
        assert isinstance(program, SplitProgram)
        return super()._given(program) + "".join(f"{how}{value:d}, " for how, value in program.copies)

    def _made(self, program: Program) -> str:
        assert isinstance(program, SplitProgram)
        named = ("k", program.kept), ("e", program.edges), (LEAF, program.leaves), ("v", program.made)
        others = [f"({''.join(f'{prefix}{v:d}, ' for v in values)})" for prefix, values in named]
        return f"Split({', '.join([super()._made(program), *others])})"

    def _node(self, node: Node) -> list[str]:
        joint = self._joints.get(node.number)
        self._reads = joint.reads if joint else {}
        lines = super()._node(node)
        for value in node.writes():
            if (DETACHED, value) in self._reads_by_kind:
                lines.append(f"    {DETACHED}{value:d} = v{value:d}.detach()")
            if (LEAF, value) in self._reads_by_kind:
                lines.append(f"    {LEAF}{value:d} = v{value:d}.detach().requires_grad_()")
        if joint:
            lines += [self._kept(value) for value in joint.keeps if value not in self._saved]
            self._saved |= set(joint.keeps)
            lines += [f"    e{value:d} = edge(v{value:d})" for value in joint.makes]
        self._reads = {}
        return lines

    def _kept(self, value: int) -> str:
        detached = ".detach()" if value in self._received else ""
        return f"    k{value:d} = {self._value(value)}{detached}"

    def _value(self, value: int) -> str:
        return f"{self._reads[value]}{value:d}" if value in self._reads else super()._value(value)

    def _operator(self, node: Node) -> Callable[..., Any]:
        """Use a kernel as if the weight had a gradient, for ops where torch checks that before it chooses."""
        if self._reads and node.op in _FOLDED:
            return _FOLDED[node.op]
        return super()._operator(node)


def _edge(made: Tensor) -> GradientEdge:
    """The edge at which the gradient of a join's result arrives."""
    assert made.grad_fn is not None, "a join has a gradient"
    return GradientEdge(made.grad_fn, made.output_nr)


def _folded_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if input.dim() < 3 or input.is_contiguous():
        return torch.ops.aten.linear.default(input, weight, bias)
    made = _folded_matmul(input, weight.t())
    return made if bias is None else made + bias


def _folded_matmul(self: Tensor, other: Tensor) -> Tensor:
    """A batch of matrices times one matrix, as a single product."""
    if self.dim() < 3 or other.dim() != 2:
        return torch.ops.aten.matmul.default(self, other)
    flat = self.reshape(-1, self.shape[-1]).mm(other)
    return flat.view(*self.shape[:-1], other.shape[-1])


_FOLDED: dict[str, Callable[..., Any]] = {
    "aten.linear.default": _folded_linear,
    "aten.matmul.default": _folded_matmul,
}

"""Gradients of weights by formula: for each op the kernels that autograd calls, so that bits are equal.

An op without a formula here is *replayed*: its node runs once more, with the weights as leaves, and autograd
does the rest. That costs the node's forward pass; products and convolutions, where it would matter, have
formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from farflung.opdag.analysis import Join
from farflung.opdag.graph import FLOATING, BatchSize, Ref
from farflung.opdag.segment import Segment
from farflung.runtime.torch_backend.codegen import Program
from farflung.runtime.torch_backend.device import ON_HOST, Place

WeightGradients = Iterator[tuple[int, Tensor]]
"""Weights with their gradients; a weight that several arguments of a node read occurs several times."""

Make = Callable[[Sequence[Tensor | None], Mapping[int, Tensor], int], WeightGradients]
"""From the gradients of a join's results, its saved values, and the seed of the microbatch."""


@dataclass(frozen=True)
class Formula:
    """How to compute the gradients of a join's weights, and the values that this needs."""

    keeps: tuple[int, ...]
    make: Make


def formula_of(join: Join, segment: Segment, batch: int, place: Place = ON_HOST) -> Formula:
    """The formula of a join's op; a replay if there is none, or it does not apply to the arguments."""
    find = _FORMULAS.get(join.node.op)
    case = _Case(join, segment, batch, place)
    return (find(case) if find and case.is_of_one_type() else None) or _replay(case)


class _Case:
    """A join with its arguments by name."""

    def __init__(self, join: Join, segment: Segment, batch: int, place: Place) -> None:
        self.join = join
        self.segment = segment
        self.batch = batch
        self.place = place
        self.arguments = join.node.arguments

    def value(self, name: str) -> int:
        """The value that an argument reads; -1 if it is not a value."""
        argument = self.arguments.get(name)
        return argument.id if isinstance(argument, Ref) else -1

    def weight(self, name: str) -> int | None:
        """The weight that an argument reads, if any."""
        value = self.value(name)
        return value if value in self.join.weights else None

    def shape(self, value: int) -> tuple[int, ...]:
        return self.segment.values[value].shape_at(self.batch)

    def is_one(self, *names: str) -> bool:
        """Whether these numbers are 1."""
        return all(self.arguments.get(name, 1) == 1 for name in names)

    def sizes(self, name: str, default: int, count: int) -> list[int]:
        """A list of `count` integers, for which the schema may have a single one."""
        given = self.arguments.get(name, default)
        listed = given if isinstance(given, list) else [given]
        numbers = [e.at(self.batch) if isinstance(e, BatchSize) else int(e) for e in listed]  # type: ignore[arg-type]
        return numbers * count if len(numbers) == 1 else numbers

    def is_of_one_type(self) -> bool:
        """Whether all floating-point values have the same type, so that no conversion is needed."""
        values = (*self.join.node.reads(), *self.join.makes)
        types = {self.segment.values[value].dtype for value in values}
        return len(types & FLOATING) == 1 and len(self.join.makes) == 1


def _simple(keeps: Sequence[int], make: Callable[[Tensor, Mapping[int, Tensor]], WeightGradients]) -> Formula:
    """A formula of a node with one result."""

    def of(gradients: Sequence[Tensor | None], saved: Mapping[int, Tensor], seed: int) -> WeightGradients:
        (gradient,) = gradients
        return iter(()) if gradient is None else make(gradient, saved)

    return Formula(tuple(keeps), of)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _summed(gradient: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient of a value that was broadcast from `shape`, in its own memory."""
    return gradient.clone() if gradient.shape == shape else gradient.sum_to_size(tuple(shape))


def _of_right(left: Tensor, right: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the right factor of a matrix product, in the memory order of that factor."""
    if right.stride(0) == 1 and right.stride(1) == right.shape[0]:
        return gradient.t().mm(left).t()
    return left.t().mm(gradient)


def _linear(case: _Case) -> Formula | None:
    x, weight, bias = case.value("input"), case.weight("weight"), case.weight("bias")
    if x in case.join.weights or len(case.shape(x)) < 2:
        return None
    shape = () if bias is None else case.shape(bias)

    def make(gradient: Tensor, saved: Mapping[int, Tensor]) -> WeightGradients:
        flat = _flat(gradient)
        if weight is not None:
            yield weight, _of_right(_flat(saved[x]), saved[weight].t(), flat).t()
        if bias is not None:
            yield bias, _summed(flat, shape)

    return _simple((x, weight) if weight is not None else (), make)


def _addmm(case: _Case) -> Formula | None:
    left, right, bias = case.value("mat1"), case.value("mat2"), case.weight("self")
    if left in case.join.weights or not case.is_one("alpha", "beta"):
        return None
    is_weight = right in case.join.weights
    shape = case.shape(case.value("self"))

    def make(gradient: Tensor, saved: Mapping[int, Tensor]) -> WeightGradients:
        if is_weight:
            yield right, _of_right(saved[left], saved[right], gradient)
        if bias is not None:
            yield bias, _summed(gradient, shape)

    return _simple((left, right) if is_weight else (), make)


def _matmul(case: _Case, right_name: str = "other") -> Formula | None:
    left, right = case.value("self"), case.value(right_name)
    if left in case.join.weights or len(case.shape(right)) != 2 or len(case.shape(left)) < 2:
        return None

    def make(gradient: Tensor, saved: Mapping[int, Tensor]) -> WeightGradients:
        yield right, _of_right(_flat(saved[left]), saved[right], _flat(gradient))

    return _simple((left, right), make)


def _mm(case: _Case) -> Formula | None:
    return _matmul(case, "mat2")


def _bmm(case: _Case) -> Formula | None:
    left, right = case.value("self"), case.value("mat2")

    def make(gradient: Tensor, saved: Mapping[int, Tensor]) -> WeightGradients:
        if right in case.join.weights:
            yield right, saved[left].transpose(1, 2).bmm(gradient)
        else:
            yield left, gradient.bmm(saved[right].transpose(1, 2))

    return _simple((left,) if right in case.join.weights else (right,), make)


def _convolution(case: _Case) -> Formula | None:
    x, weight, bias = case.value("input"), case.value("weight"), case.value("bias")
    count = len(case.shape(weight)) - 2
    if x in case.join.weights or len(case.shape(x)) != count + 2:
        return None
    stride, dilation = case.sizes("stride", 1, count), case.sizes("dilation", 1, count)
    padding, groups = case.sizes("padding", 0, count), case.sizes("groups", 1, 1)[0]
    bias_sizes = None if bias < 0 else list(case.shape(bias))
    mask = [False, weight in case.join.weights, bias in case.join.weights]

    def make(gradient: Tensor, saved: Mapping[int, Tensor]) -> WeightGradients:
        _, of_weight, of_bias = torch.ops.aten.convolution_backward.default(
            gradient, saved[x], saved[weight], bias_sizes, stride, padding, dilation, False, [0] * count,
            groups, mask,
        )  # fmt: skip
        if mask[1]:
            yield weight, of_weight
        if mask[2]:
            yield bias, of_bias

    return _simple((x, weight), make)


def _add(case: _Case) -> Formula | None:
    weight = case.weight("self") if case.weight("self") is not None else case.weight("other")
    if weight is None or not case.is_one("alpha"):
        return None
    shape = case.shape(weight)
    return _simple((), lambda gradient, saved: iter([(weight, _summed(gradient, shape))]))


def _mul(case: _Case) -> Formula | None:
    first, second = case.value("self"), case.value("other")
    weight, other = (first, second) if first in case.join.weights else (second, first)
    shape = case.shape(weight)
    return _simple(
        (other,), lambda gradient, saved: iter([(weight, _summed(gradient * saved[other], shape))])
    )


_FORMULAS: dict[str, Callable[[_Case], Formula | None]] = {
    "aten.linear.default": _linear,
    "aten.addmm.default": _addmm,
    "aten.matmul.default": _matmul,
    "aten.mm.default": _mm,
    "aten.bmm.default": _bmm,
    "aten.conv1d.default": _convolution,
    "aten.conv2d.default": _convolution,
    "aten.conv3d.default": _convolution,
    "aten.add.Tensor": _add,
    "aten.mul.Tensor": _mul,
}


def _replay(case: _Case) -> Formula:
    """Run the node once more, with its weights as leaves."""
    reads = sorted(set(case.join.node.reads()))
    alone = msgspec.structs.replace(
        case.segment,
        inputs=[],
        owned=[],
        receives=reads,
        nodes=[case.join.node],
        sends=list(case.join.makes),
        differentiable=[],
        loss=None,
        mutations={},
        constants={},
    )
    program = Program(alone, case.batch, True, case.place)
    weights = case.join.weights

    def make(gradients: Sequence[Tensor | None], saved: Mapping[int, Tensor], seed: int) -> WeightGradients:
        with torch.enable_grad():
            leaves = {value: saved[value].detach().requires_grad_() for value in weights}
            results = program.run([], [leaves.get(v, saved[v]) for v in program.values], seed)
        pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None]
        if not pairs:
            return
        made, given = zip(*pairs, strict=True)
        found = torch.autograd.grad(made, list(leaves.values()), given, allow_unused=True)
        for value, gradient in zip(leaves, found, strict=True):
            if gradient is not None:
                yield value, gradient.clone()  # it may be a view of an incoming gradient

    return Formula(tuple(reads), make)

"""A segment's forward pass in training, and what it keeps for the backward pass.

A segment that sends no gradients has one backward pass, for which no other worker waits (`WholePass`). Any
other sends gradients before it computes those of parameters (`SplitPass`): its joins read weights without a
gradient, so autograd runs from the sent values to the received ones, past the joins. Besides the gradients to
send it returns those of the joins' results, from which `accumulate` computes the gradients of weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from farflung.opdag.analysis import Join, Sides
from farflung.opdag.opset import lookup
from farflung.opdag.segment import Segment
from farflung.runtime.torch_backend.codegen import Program
from farflung.runtime.torch_backend.crossing import Deferred
from farflung.runtime.torch_backend.device import ON_HOST, Place
from farflung.runtime.torch_backend.formulas import Formula, formula_of
from farflung.runtime.torch_backend.split_program import DETACHED, LEAF, Joint, Split, SplitProgram

Sink = Callable[[int, Tensor], None]
Results = dict[int, Tensor]


class Tape(Protocol):
    """The state of one microbatch from its forward pass until it is accumulated."""

    def backward(self, gradients: Mapping[int, Tensor], send: Sink) -> None:
        """Run backward from the gradients of sent values and the loss; `send` those of received values."""

    def accumulate(self) -> None:
        """Add the gradients of parameters to their `grad`."""


class Pass(Protocol):
    """A segment's forward pass in training."""

    @property
    def program(self) -> Program:
        """The program, which names the state, values and results."""

    def results(self, state: Sequence[Tensor], values: Mapping[int, Tensor], seed: int) -> Results:
        """The results of `forward` alone, with the bits that it makes them in."""

    def forward(
        self, state: Sequence[Tensor], values: Mapping[int, Tensor], seed: int
    ) -> tuple[Results, Tape]:
        """Run forward; returns the results by value, and the tape.

        `state` are tensors in the order of `program.state`, `values` the model inputs and received values.
        """


class WholePass:
    """The pass of a segment that sends no gradients back."""

    def __init__(self, segment: Segment, batch: int, place: Place = ON_HOST) -> None:
        self.program = Program(segment, batch, True, place)

    def results(self, state: Sequence[Tensor], values: Mapping[int, Tensor], seed: int) -> Results:
        given = {value: tensor.detach() for value, tensor in values.items()}
        return self.program.results_of(state, given, seed)

    def forward(
        self, state: Sequence[Tensor], values: Mapping[int, Tensor], seed: int
    ) -> tuple[Results, Tape]:
        made = self.results(state, values, seed)
        return made, _WholeTape(made)


class _WholeTape:
    def __init__(self, made: Results) -> None:
        self._made = made
        self._gradients: Mapping[int, Tensor] = {}

    def backward(self, gradients: Mapping[int, Tensor], send: Sink) -> None:
        self._gradients = gradients

    def accumulate(self) -> None:
        _accumulate((self._made[value], gradient) for value, gradient in self._gradients.items())


class SplitPass:
    """The pass of a segment that sends gradients. `state` are the leaves that hold parameters, by value."""

    def __init__(
        self,
        segment: Segment,
        batch: int,
        sides: Sides,
        state: Mapping[int, Tensor],
        place: Place = ON_HOST,
    ) -> None:
        self._received = [value for value in segment.receives if value in sides.received]
        self.sides = sides
        self.crossing = place.crossing
        joined = [(join, _formula(join, segment, batch, place)) for join in sides.joins]
        joints = [_joint(join, formula) for join, formula in joined]
        self.program = SplitProgram(segment, batch, sides.received, joints, place)
        copies = [(how, state[value].detach()) for how, value in self.program.copies]
        self._copies = [copy.requires_grad_(how == LEAF) for how, copy in copies]
        self.parameters = {v: t for v, t in state.items() if v in sides.weights}
        self.read_once = _read_once(segment, sides) & self.parameters.keys()
        self.formulas = self._in_order([(j, formula) for j, formula in joined if formula is not None])

    def _in_order(self, formulas: list[tuple[Join, Formula]]) -> list[tuple[Join, Formula]]:
        """Joins with their own weights first, in order, while data is in the cache; then the others in
        reverse.
        """
        alone = [(join, f) for join, f in formulas if self.read_once.issuperset(join.weights)]
        shared = [(join, f) for join, f in formulas if not self.read_once.issuperset(join.weights)]
        return [*alone, *reversed(shared)]

    def _leaves(self, values: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """The values detached, and requiring a gradient if that is sent back."""
        received = self.sides.received
        return {v: tensor.detach().requires_grad_(v in received) for v, tensor in values.items()}

    def results(self, state: Sequence[Tensor], values: Mapping[int, Tensor], seed: int) -> Results:
        return self.program.results_of(state, self._leaves(values), seed)

    def forward(
        self, state: Sequence[Tensor], values: Mapping[int, Tensor], seed: int
    ) -> tuple[Results, Tape]:
        given = self._leaves(values)
        program = self.program
        split = program.split([*state, *self._copies], [given[v] for v in program.values], seed)
        made = dict(zip(program.results, split.results, strict=True))
        received = {value: given[value] for value in self._received}
        return made, _SplitTape(self, received, made, split, seed)


def _formula(join: Join, segment: Segment, batch: int, place: Place) -> Formula | None:
    """How the gradients of a join's weights are computed later; None if `backward` computes them already.

    For a normalisation, one kernel computes the gradients of its input and its weights. For attention, the
    choice of kernel depends on whether its mask has a gradient.
    """
    if lookup(join.node.op).group in ("normalisation", "attention"):
        return None
    return formula_of(join, segment, batch, place)


def _joint(join: Join, formula: Formula | None) -> Joint:
    if formula is None:
        return Joint(join.node.number, dict.fromkeys(join.weights, LEAF), (), ())
    return Joint(join.node.number, dict.fromkeys(join.weights, DETACHED), formula.keeps, join.makes)


def _read_once(segment: Segment, sides: Sides) -> set[int]:
    """Weights that only one argument of one join reads."""
    reads = Counter(value for node in segment.nodes for value in node.reads())
    return {value for join in sides.joins for value in join.weights if reads[value] == 1}


class _SplitTape:
    """The leaves and results of a microbatch until `backward`, then what its joins saved and received."""

    def __init__(
        self, split_pass: SplitPass, leaves: Results, made: Results, split: Split, seed: int
    ) -> None:
        self._pass = split_pass
        self._leaves = leaves
        self._made = made
        self._edges, self._weights = split.edges, split.leaves
        self._kept = dict(zip(split_pass.program.kept, split.kept, strict=True))
        self._roots = dict(zip(split_pass.program.made, split.made, strict=True))
        self._seed = seed
        self._arrived: dict[int, Tensor] = {}
        self._found: list[tuple[int, Tensor]] = []

    def backward(self, gradients: Mapping[int, Tensor], send: Sink) -> None:
        """Send each gradient as it was when autograd found it, before the rest of the pass has run."""
        sides, made = self._pass.sides, self._made
        self._found = [(v, g) for v, g in gradients.items() if v in sides.weights]
        self._roots |= {value: made[value] for value, _ in self._found}
        ends = [(made[v], g) for v, g in gradients.items() if v in sides.received and made[v].requires_grad]
        crossing = self._pass.crossing
        if ends and crossing is None:
            self._run(ends, send)
        elif ends and crossing is not None:  # autograd has a thread of its own there
            deferred = Deferred(crossing)
            self._run(ends, deferred.note)
            deferred.send(send)
        self._leaves, self._made, self._edges, self._weights = {}, {}, (), ()

    def _run(self, ends: Sequence[tuple[Tensor, Tensor]], send: Sink) -> None:
        for value, leaf in self._leaves.items():
            leaf.register_hook(lambda gradient, value=value: send(value, gradient.contiguous()))
        program = self._pass.program
        wanted: list[Tensor | GradientEdge] = [*self._leaves.values(), *self._edges, *self._weights]
        tensors, given = zip(*ends, strict=True)
        found = torch.autograd.grad(tensors, wanted, given, allow_unused=True)[len(self._leaves) :]  # type: ignore[arg-type]
        edges = len(program.edges)
        self._arrived = {v: g for v, g in zip(program.edges, found[:edges], strict=True) if g is not None}
        self._found += [(v, g) for v, g in zip(program.leaves, found[edges:], strict=True) if g is not None]

    def accumulate(self) -> None:
        """Apply the formulas, then run autograd from computed weights to parameters."""
        split_pass = self._pass
        sums: dict[int, Tensor] = {}

        def add(value: int, gradient: Tensor) -> None:
            if value in split_pass.read_once:
                _add_to(split_pass.parameters[value], gradient)
            else:
                sums[value] = sums[value] + gradient if value in sums else gradient

        with torch.no_grad():
            for value, gradient in self._found:
                add(value, gradient)
            for join, formula in split_pass.formulas:
                own = [self._arrived.pop(value, None) for value in join.makes]
                for value, gradient in formula.make(own, self._kept, self._seed):
                    add(value, gradient)
        roots = self._roots | split_pass.parameters
        _accumulate((roots[value], gradient) for value, gradient in sums.items())


def _add_to(parameter: Tensor, gradient: Tensor) -> None:
    """Add a gradient to a parameter's `grad`; nothing else references the memory of `gradient`."""
    if parameter.grad is not None:
        parameter.grad += gradient
    elif gradient.stride() == parameter.stride():
        parameter.grad = gradient
    else:
        parameter.grad = torch.empty_like(parameter).copy_(gradient)


def _accumulate(ends: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Run autograd from these tensors with these gradients to the parameters."""
    pairs = [(tensor, gradient) for tensor, gradient in ends if tensor.requires_grad]
    if pairs:
        tensors, gradients = zip(*pairs, strict=True)
        torch.autograd.backward(tensors, gradients)

"""Code generation: a validated segment becomes one straight-line Python function.

THIS IS THE ONLY FILE THAT CALLS `exec`. The source it builds contains only integers, our own variable names
(`v3`, `o1`, `c2`) and punctuation: ops, floats, strings and element types are objects in the function's
namespace. A segment must have passed `opdag.wire.load_segment` before.

Straight-line code is as fast as eager PyTorch (`benchmarks/overhead.py`); an interpreter loop over the same
graph costs 37 % more on a small model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from farflung.opdag import opset
from farflung.opdag.graph import Argument, BatchSize, DType, Node, Ref
from farflung.opdag.segment import EVALUATION, Segment
from farflung.runtime.indices import CLASS_LOSSES, index_ranges
from farflung.runtime.torch_backend import quantized
from farflung.runtime.torch_backend.device import ON_HOST, Place, generator_of, tightest
from farflung.runtime.torch_backend.tensors import DTYPES
from farflung.seeds import mix

quantized.register()

# (state tensors, value tensors, seed of the microbatch) -> results, in the orders of `Program`
Function = Callable[[Sequence[Tensor], Sequence[Tensor], int], tuple[Tensor, ...]]


class Program:
    """A segment's forward pass as a Python function.

    `state` are value ids of parameters, buffers and constants, `values` of model inputs and received values,
    `results` of sent values, the loss and mutated buffers or metrics: the orders of `run`'s arguments and
    results. With `train` false it is the evaluation graph: dropout is the identity, BatchNorm uses its
    running statistics. What it makes is on the device of `place`, as its arguments must be.
    """

    def __init__(self, segment: Segment, batch: int, train: bool, place: Place = ON_HOST) -> None:
        self.state = [entry.value for entry in segment.inputs if entry.kind != "input"]
        fed = [entry.value for entry in segment.inputs if entry.kind == "input"]
        self.values = [*fed, *segment.receives]
        self.results = [*segment.sends]
        if segment.loss is not None:
            self.results.append(segment.loss)
        if train:
            self.results.extend(segment.mutations.values())
        else:
            self.results.extend(value for value in segment.metrics if value not in self.results)
        writer = Writer(segment, batch, train, place)
        self.source = writer.write(self)
        self.run: Function = execute(self.source, segment.number, writer.namespace)

    def results_of(
        self, state: Sequence[Tensor], values: Mapping[int, Tensor], seed: int
    ) -> dict[int, Tensor]:
        """Run on values by id; returns results by id."""
        results = self.run(state, [values[value] for value in self.values], seed)
        return dict(zip(self.results, results, strict=True))


def execute(source: str, segment: int, namespace: dict[str, Any]) -> Any:
    """The function `run` that a writer's source defines."""
    exec(compile(source, source_name(segment), "exec"), namespace)  # noqa: S102
    return namespace["run"]


def source_name(segment: int) -> str:
    """The file name of a segment's code in tracebacks."""
    return f"<segment {segment:d}>"


class Writer:
    """Builds the source of one function and the namespace it runs in."""

    def __init__(self, segment: Segment, batch: int, train: bool, place: Place) -> None:
        self._segment = segment
        self._batch = batch
        self._train = train
        self._place = place
        self._bounded = {} if place.is_host else tightest(index_ranges(segment, batch))
        self._names: dict[Any, str] = {}
        # The source imports nothing. Torch's race detector does, in the frame that called it.
        builtins = {"__import__": __import__} if "TORCH_CUDA_SANITIZER" in os.environ else {}
        self.namespace: dict[str, Any] = {"__builtins__": builtins, "reseed": reseeding(place.device)}

    def write(self, program: Program) -> str:
        """The whole function, one line per node; a value is deleted after its last use."""
        lines = ["def run(state, values, seed):"]
        named = (self._given(program), "state"), (_listed("v", program.values), "values")
        lines += [f"    {names} = {source}" for names, source in named if names]
        keep = self._keep(program)
        last_use = {v: at for at, node in enumerate(self._segment.nodes) for v in node.reads()}
        for at, node in enumerate(self._segment.nodes):
            lines += [*self._node(node), *self._in_range(node)]
            dead = {v for v in (*node.reads(), *node.writes()) if last_use.get(v, at) == at} - keep
            if dead:
                lines.append(f"    del {', '.join(f'v{v:d}' for v in sorted(dead))}")
        lines.append(f"    return {self._made(program)}")
        return "\n".join(lines) + "\n"

    def _in_range(self, node: Node) -> list[str]:
        """Lines that keep indices which the node makes in range; a CPU's kernels check them by themselves."""
        made = [value for value in node.writes() if value in self._bounded]
        bounds = {value: self._place.bounding(self._bounded[value]) for value in made}
        return [f"    v{value:d} = {self._object(bound, 'b')}(v{value:d})" for value, bound in bounds.items()]

    def _keep(self, program: Program) -> set[int]:
        """Values that are not deleted after their last use."""
        return {*program.results, *program.state}

    def _given(self, program: Program) -> str:
        """Names for the state tensors."""
        return _listed("v", program.state)

    def _made(self, program: Program) -> str:
        """The expression that the function returns."""
        return f"({_listed('v', program.results)})"

    def _node(self, node: Node) -> list[str]:
        op = opset.lookup(node.op)
        arguments = dict(node.arguments)
        if not self._train:
            if node.op == "aten.native_dropout.default" and node.outputs[1] < 0:
                return [f"    v{node.outputs[0]:d} = {self._argument(arguments['input'])}"]
            arguments |= EVALUATION.get(node.op, {})
        lines = []
        draws = op.draws(Node(node.number, node.op, arguments, node.outputs))
        if draws:
            lines.append(f"    reseed(seed, {node.number:d})")
        # PyTorch draws in the order of memory, which capture and cuts may change: draw in rows instead.
        in_rows = draws and node.op != "aten.scaled_dot_product_attention.default"
        if node.op == "aten.native_dropout.default" and node.outputs[1] < 0:
            # As eager does: without a mask to return, the scale is rounded elsewhere (p = 0.15).
            drop = self._object(torch.ops.aten.dropout.default, "o")
            values = ", ".join(self._argument(arguments[name], in_rows) for name in ("input", "p", "train"))
            return [*lines, f"    v{node.outputs[0]:d} = {drop}({values})"]
        call = f"{self._object(self._operator(node), 'o')}({self._call(node.op, arguments, in_rows)})"
        if op.results == 1:
            return [*lines, f"    v{node.outputs[0]:d} = {call}"]
        targets = "".join(f"v{value:d}, " if value >= 0 else "_, " for value in node.outputs)
        return [*lines, f"    {targets}= {call}"]

    def _operator(self, node: Node) -> Callable[..., Any]:
        if node.op in CLASS_LOSSES and not self._place.is_host and node.arguments.get("reduction", 1) != 0:
            return _one_row_a_place(resolve(node.op))
        return _draw_like if node.op == "aten.bernoulli.p" else resolve(node.op)

    def _call(self, op: str, arguments: dict[str, Argument], in_rows: bool = False) -> str:
        """Positional arguments as far as the schema allows, then keywords (names from torch's schema)."""
        parts: list[str] = []
        positional = True
        for entry in resolve(op)._schema.arguments:
            if entry.name not in arguments:
                positional = False
                continue
            positional = positional and not entry.kwarg_only
            text = self._argument(arguments[entry.name], in_rows)
            parts.append(text if positional else f"{entry.name}={text}")
        if not self._place.is_host and _names_a_device(op):
            parts.append(f"device={self._object(self._place.device, 'c')}")
        return ", ".join(parts)

    def _argument(self, argument: Argument, in_rows: bool = False) -> str:
        if isinstance(argument, list):
            return f"[{', '.join(self._argument(element, in_rows) for element in argument)}]"
        if isinstance(argument, Ref):
            value = self._value(argument.id)
            return f"{self._object(Tensor.contiguous, 'o')}({value})" if in_rows else value
        if isinstance(argument, BatchSize):
            return f"{argument.at(self._batch):d}"
        if isinstance(argument, DType):
            return self._object(DTYPES[argument.name], "c")
        if isinstance(argument, int) and not isinstance(argument, bool):
            return f"{argument:d}"
        return self._object(argument, "c")

    def _value(self, value: int) -> str:
        """The name under which a node reads a value."""
        return f"v{value:d}"

    def _object(self, value: Any, prefix: str) -> str:
        """The name of `value` in the namespace."""
        key = (type(value), repr(value) if isinstance(value, float) else value)  # -0.0 == 0.0, nan != nan
        if key not in self._names:
            self._names[key] = f"{prefix}{len(self._names):d}"
            self.namespace[self._names[key]] = value
        return self._names[key]


def _listed(prefix: str, values: Sequence[int]) -> str:
    return "".join(f"{prefix}{value:d}, " for value in values)


def resolve(name: str) -> torch._ops.OpOverload:
    """torch's operator for a name of the opset; raises for other names before torch sees them."""
    opset.lookup(name)
    namespace, base, overload = name.split(".")
    packet = getattr(getattr(torch.ops, namespace), base)
    operator: torch._ops.OpOverload = getattr(packet, overload)
    return operator


def _names_a_device(op: str) -> bool:
    """Whether the op makes a tensor where it is asked to, and not beside one that it is given."""
    schema = resolve(op)._schema.arguments
    return any(e.name == "device" for e in schema) and not any(e.name == "self" for e in schema)


def reseeding(device: torch.device) -> Callable[[int, int], None]:
    """What seeds the device's generator for one random node, by number, of one microbatch, by seed."""
    generator = generator_of(device)

    def reseed(seed: int, number: int) -> None:
        generator.manual_seed(mix(seed, number))

    return reseed


@cache
def _one_row_a_place(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss of classes at each place of an image as one of rows: CUDA repeats the bits of that one only."""

    def of_rows(input: Tensor, target: Tensor, *others: Any, **named: Any) -> Tensor:
        if input.dim() > 2 and torch.are_deterministic_algorithms_enabled():
            rows = input.movedim(1, -1).reshape(-1, input.shape[1])
            target = (
                target.movedim(1, -1).reshape(rows.shape) if target.dim() == input.dim() else target.flatten()
            )
            return loss(rows, target, *others, **named)
        return loss(input, target, *others, **named)

    return of_rows


def _draw_like(self: Tensor, p: float) -> Tensor:
    """`bernoulli` in place, as in eager: only then does torch have a gradient (of zeros) for `self`."""
    return self.clone().bernoulli_(p)

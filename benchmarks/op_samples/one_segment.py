"""Samples of ops as one segment on a backend: what it makes of them, and the gradients it sends back.

Everything a worker does with a program from outside is done here too: bytes, wire, verification, forward,
backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.op_samples.samples import NAMES, Sample
from torch import Tensor

from farflung.opdag import opset, wire
from farflung.opdag.form import Form
from farflung.opdag.graph import Node, ValueType
from farflung.opdag.segment import Segment
from farflung.runtime.backend import AnyBackend
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.torch_backend.tensors import DTYPES
from farflung.runtime.training import Training
from farflung.schedule import Unit

TRAINING = Training(1, 1, 1, SGD(lr=0.0), seed=3)
STEP = Unit(0, True, 0, 1)


@dataclass
class Layout:
    """Which value of the segment is which tensor of which sample."""

    types: dict[int, ValueType] = field(default_factory=dict)
    given: dict[int, Tensor] = field(default_factory=dict)
    expected: dict[int, Tensor] = field(default_factory=dict)
    sample_of: dict[int, int] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def add(self, tensor: Tensor, sample: int) -> int:
        """A new value of a tensor's type."""
        number = len(self.types)
        self.types[number] = ValueType(NAMES[tensor.dtype], list(tensor.shape))  # type: ignore[arg-type]
        self.sample_of[number] = sample
        return number


def laid_out(samples: Sequence[Sample]) -> Layout:
    """One node a sample; whatever a node reads is received, whatever it makes is sent."""
    layout = Layout()
    for at, sample in enumerate(samples):
        numbers = {id(tensor): layout.add(tensor, at) for tensor in sample.tensors}
        layout.given |= {numbers[id(tensor)]: tensor for tensor in sample.tensors}
        outputs = []
        for place, tensor in enumerate(sample.expected):
            outputs.append(-1 if place in sample.unused else layout.add(tensor, at))
            if outputs[-1] >= 0:
                layout.expected[outputs[-1]] = tensor
        arguments = sample.wire(lambda tensor, numbers=numbers: numbers[id(tensor)])
        layout.nodes.append(Node(at, sample.op, arguments, outputs))
    return layout


def segment_of(layout: Layout) -> Segment:
    """The segment, as it comes off the wire."""
    both = {**layout.given, **layout.expected}
    segment = Segment(
        version=wire.FORMAT_VERSION,
        opset=opset.version(),
        number=0,
        values=layout.types,
        inputs=[],
        owned=[],
        receives=list(layout.given),
        nodes=layout.nodes,
        sends=list(layout.expected),
        differentiable=[number for number, tensor in both.items() if tensor.requires_grad],
        loss=None,
        mutations={},
        constants={},
    )
    return wire.load_segment(wire.dump(segment), 1)


def seeds_of(layout: Layout) -> dict[int, Tensor]:
    """A gradient for every result that has one: any numbers will do, if not all are alike."""
    generator = torch.Generator().manual_seed(5)
    return {
        number: torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        for number, tensor in layout.expected.items()
        if tensor.requires_grad
    }


def expected_gradients(layout: Layout, seeds: dict[int, Tensor]) -> dict[int, Tensor]:
    """What torch's autograd makes of the same gradients; values that it gives none have none here."""
    found: dict[int, Tensor] = {}
    for sample in set(layout.sample_of.values()):  # one after the other: several may share a tensor
        mine = {number for number, which in layout.sample_of.items() if which == sample}
        wanted = {n: tensor for n, tensor in layout.given.items() if n in mine and tensor.requires_grad}
        made = [number for number in layout.expected if number in mine and number in seeds]
        if made and wanted:
            gradients = torch.autograd.grad(
                [layout.expected[number] for number in made],
                list(wanted.values()),
                [seeds[number] for number in made],
                retain_graph=True,
                allow_unused=True,
            )
            found |= {n: g for n, g in zip(wanted, gradients, strict=True) if g is not None}
    return found


def run(
    backend: AnyBackend, layout: Layout, seeds: dict[int, Tensor]
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """What the backend makes: results, and gradients of what was received."""
    segment = segment_of(layout)
    backend.verify(segment, 1)
    runner = backend.runner(segment, {}, TRAINING)

    def to_backend(number: int, tensor: Tensor) -> Any:
        data = _bytes(tensor)
        buffer = backend.allocate(len(data)) if data else memoryview(b"")
        if data:
            buffer[:] = data
        return backend.array(buffer, Form.of(layout.types[number], 1))

    def from_backend(number: int, array: Any) -> Tensor:
        kind = layout.types[number]
        data = bytearray(backend.memory(array))
        flat = torch.frombuffer(data, dtype=DTYPES[kind.dtype]) if data else torch.empty(0)
        return flat.to(DTYPES[kind.dtype]).reshape(kind.shape_at(1))

    results = runner.forward(STEP, 0, {number: to_backend(number, t) for number, t in layout.given.items()})
    made = {number: from_backend(number, array) for number, array in results.items()}
    gradients: dict[int, Tensor] = {}

    def send(number: int, array: Any) -> None:
        gradients[number] = from_backend(number, array)

    runner.backward(STEP, 0, {number: to_backend(number, seed) for number, seed in seeds.items()}, send)
    return made, gradients


def _bytes(tensor: Tensor) -> bytes:
    return (
        tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        if tensor.numel()
        else b""
    )

"""Runs a document alone: every tensor it asks for is made by a formula, so that nothing else is needed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farflung.opdag import wire
from farflung.opdag.graph import FLOATING, ValueType
from farflung.opdag.partition import Partition
from farflung.opdag.segment import Segment
from farflung.runtime.torch_backend.codegen import Program
from farflung.runtime.torch_backend.tensors import DTYPES
from farflung.runtime.torch_backend.verify import verify_segment

BATCH = 2
SEED = 7


def numbers_of(data: bytes, is_segment: bool) -> dict[str, list[float]]:
    """The means of what a graph or a segment makes, in training and in evaluation, as floats."""
    if is_segment:
        segment = wire.load_segment(data, BATCH)
    else:
        (segment,) = Partition(wire.load_graph(data, BATCH), [], BATCH).segments()
    verify_segment(segment, BATCH)
    return {"train": _run(segment, True), "evaluate": _run(segment, False)}


def _run(segment: Segment, train: bool) -> list[float]:
    program = Program(segment, BATCH, train)
    kinds = {entry.value: entry.kind for entry in segment.inputs}
    tensors = {
        value: tensor_for(segment.values[value], kinds.get(value, "received"), at)
        for at, value in enumerate(sorted([*kinds, *segment.receives]))
    }
    for entry in segment.inputs:
        if entry.kind == "constant":
            constant = segment.constants[entry.name]
            flat = torch.frombuffer(bytearray(constant.data), dtype=DTYPES[constant.dtype])
            tensors[entry.value] = flat.reshape(constant.shape)
    with torch.no_grad():
        made = program.run([tensors[v] for v in program.state], [tensors[v] for v in program.values], SEED)
    return [float(tensor.double().mean()) for tensor in made]


def tensor_for(value_type: ValueType, kind: str, salt: int) -> Tensor:
    """Numbers of that type which are the same on every machine; integers are 0 to 9."""
    shape = value_type.shape_at(BATCH)
    count = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape) + salt
    if value_type.dtype == "bool":
        return torch.tril(torch.ones(shape, dtype=torch.bool)) if len(shape) > 1 else count % 5 > 0
    if value_type.dtype not in FLOATING:
        return (count * 7 % 10).to(DTYPES[value_type.dtype])
    wave = torch.sin(count)
    scaled = {"parameter": 0.2 * wave, "buffer": 1 + 0.5 * wave}.get(kind, wave)
    return scaled.to(DTYPES[value_type.dtype])

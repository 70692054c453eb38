"""What is said to be kept for the backward pass, against what autograd keeps of the same program."""

from __future__ import annotations

import pytest
import torch
from tests.runtime.side_by_side import captured, workers
from tests.zoo import CASES, Case, case
from torch import Tensor

from farflung.opdag.segment import Segment
from farflung.planner import plan_graph
from farflung.runtime.check import named_state
from farflung.runtime.footprint import segment_tape
from farflung.runtime.torch_backend.codegen import Program
from farflung.runtime.torch_backend.tensors import constant_tensor

SAMPLES = 4


def saved_bytes(segment: Segment, state: dict[str, Tensor], batch: dict[str, Tensor]) -> int:
    """Bytes of all memory that autograd keeps for the backward pass, but of what the program was given."""
    program = Program(segment, SAMPLES, train=True)
    entries = [entry for entry in segment.inputs if entry.kind != "input"]
    held = [
        constant_tensor(segment.constants[entry.name])
        if entry.kind == "constant"
        else state[entry.name].detach().clone().requires_grad_(entry.trainable)
        for entry in entries
    ]
    fed = {entry.value: batch[entry.name] for entry in segment.inputs if entry.kind == "input"}
    given = [fed[value] for value in program.values]
    others = {tensor.untyped_storage().data_ptr() for tensor in (*held, *given)}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = program.run(held, given, 0)
    assert results
    return sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in others)


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_a_tape_is_as_large_as_what_autograd_keeps(entry: Case) -> None:
    """Up to numbers of a few bytes: the weight of a loss, the scale of a mean."""
    module, graph = captured(entry, SAMPLES)
    (segment,) = plan_graph(graph, 2, SAMPLES, workers(1)).segments
    real = saved_bytes(segment, named_state(module, graph), entry.batch(SAMPLES, 1))
    tape = segment_tape(segment, SAMPLES).kept.sum()
    assert real - 64 <= tape <= 1.02 * real + 64


def test_what_needs_no_gradient_keeps_nothing() -> None:
    _, graph = captured(case("frozen"), SAMPLES)
    kept = segment_tape(plan_graph(graph, 2, SAMPLES, workers(1)).segments[0], SAMPLES).kept
    assert not kept[0] and kept[1]  # the first layer is frozen; the second keeps what it reads

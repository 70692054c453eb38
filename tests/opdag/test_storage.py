from __future__ import annotations

import copy

import pytest
import torch
from tests.runtime.side_by_side import captured
from tests.zoo import CASES, Case
from torch import Tensor, nn

from farflung.opdag.storage import storage_of
from farflung.runtime.check import named_state
from farflung.runtime.torch_backend.profile import node_by_node
from farflung.workload import workload_of

SAMPLES = 2


def saved_bytes(module: nn.Module, batch: dict[str, Tensor]) -> int:
    """Bytes of all memory that autograd keeps for the backward pass, but parameters, buffers and inputs."""
    given = [*module.parameters(), *module.buffers(), *batch.values()]
    others = {place(tensor) for tensor in given}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(place(tensor), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = module(**batch)
    assert loss is not None
    return sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in others)


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_what_is_said_to_share_memory_really_does(entry: Case) -> None:
    module, graph = captured(entry, SAMPLES)
    shared = storage_of(graph.nodes).shared
    for step in node_by_node(graph, named_state(module, graph), entry.batch(SAMPLES, 1)):
        with torch.no_grad():
            made = dict(zip(step.program.results, step.run(), strict=True))
        read = {place(tensor) for tensor in step.read}
        assert all(place(made[value]) in read for value in shared & made.keys())


def place(tensor: Tensor) -> int:
    """Where a tensor's memory begins."""
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_a_tape_is_never_said_to_be_smaller_than_what_autograd_keeps(entry: Case) -> None:
    module, graph = captured(entry, SAMPLES)
    tape = workload_of(graph, 1, SAMPLES).tape_bytes.sum()
    assert saved_bytes(copy.deepcopy(module), entry.batch(SAMPLES, 1)) <= tape

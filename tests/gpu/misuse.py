"""What is refused on the accelerator that is not there, and what a segment says of bad indices on it."""

from __future__ import annotations

import pytest
import torch
from benchmarks.zoo.devices import MICROBATCHES, Run
from benchmarks.zoo.on_backends import Pipeline
from benchmarks.zoo.side_by_side import microbatches
from tests.gpu.numbers_device import NAME, Refused
from tests.runtime.test_indices import SAMPLES, TRAINING, captured, good

from farflung.errors import JobError
from farflung.planner import plan_graph
from farflung.runtime.parity.steps import named_state
from farflung.runtime.torch_backend.backend import TorchBackend


def numbers_are_not_read_one_by_one() -> None:
    there = torch.ones(2, device=NAME)
    for read in (lambda: there[0].item(), lambda: float(there[0]), lambda: bool(there[0]), there.numpy):
        with pytest.raises(Refused):
            read()
    assert there.cpu().tolist() == [1.0, 1.0]


def devices_do_not_mix() -> None:
    with pytest.raises(Refused, match="of the accelerator and of the host"):
        torch.ones(2, device=NAME) + torch.ones(2)


def what_is_made_there_stays_there() -> None:
    there = torch.arange(6, device=NAME, dtype=torch.float32).requires_grad_()
    (there.reshape(2, 3) @ torch.ones(3, 2, device=NAME)).sum().backward()
    assert there.grad is not None and there.grad.device == torch.device(NAME, 0)


CASES = [numbers_are_not_read_one_by_one, devices_do_not_mix, what_is_made_there_stays_there]


def message_of(name: str, index: int) -> str:
    """What a job says of a bad index in a model that has every op which takes indices."""
    module, graph = captured()
    planned = plan_graph(graph, 1, SAMPLES, ["a"])
    state = {name: tensor.detach() for name, tensor in named_state(module, graph).items()}
    made = Pipeline(
        graph, planned.plan, planned.segments, state, TRAINING, [TorchBackend(torch.device(NAME))]
    )
    batch = good()
    if name:
        batch[name].view(-1)[1] = index
    try:
        for unit in (0, 1):
            made.run(unit, [batch])
            made.decide(unit, 1.0)
    except JobError as error:
        return str(error)
    return ""


def state_returns(name: str) -> bool:
    """Whether a step after `restore` of a snapshot has the bits of the same step before."""
    run = Run(name, [TorchBackend(torch.device(NAME))], 1)
    (runner,) = run.pipeline.runners()
    run.step()
    names = set(runner.segment.owned)
    before = {key: bytearray(buffer) for key, buffer in runner.snapshot(names, slots=True).items()}
    batches = microbatches(run.case, 2, MICROBATCHES, 1)
    run.step(batches)
    expected = run.state()
    runner.restore({key: memoryview(buffer) for key, buffer in before.items()})
    assert not all(torch.equal(tensor, expected[name]) for name, tensor in run.state().items())
    run.step(batches)
    return all(torch.equal(tensor, expected[name]) for name, tensor in run.state().items())

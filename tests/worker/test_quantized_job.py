"""Only a job on a quantized base has pages of their own for its large tensors: they cost page faults."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.worker.loads import limits
from torch import Tensor, nn

from farflung.opdag.capture import capture
from farflung.opdag.quantized import quantized
from farflung.planner import plan_graph
from farflung.protocol.messages import Load
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.state import trained_shapes
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.training import Training
from farflung.worker.computing import running_job
from farflung.worker.computing.state_receiver import StateReceiver

SAMPLES = 2


class Half(nn.Module):
    """A frozen layer and a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 1)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x))).square().mean()


@pytest.mark.parametrize("is_quantized", [False, True])
def test_large_tensors_have_pages_of_their_own_on_a_quantized_base(
    monkeypatch: pytest.MonkeyPatch, is_quantized: bool
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(running_job, "give_large_tensors_their_own_pages", told.append)
    graph = capture(Half(), {"x": torch.randn(SAMPLES, 64)}).graph
    if is_quantized:
        graph, _ = quantized(graph, "nf4")
    planned = plan_graph(graph, 1, SAMPLES, ["a"])
    (segment,) = planned.segments
    sizes = {e.name: segment.values[e.value].bytes(SAMPLES) for e in graph.inputs_of("parameter")}
    program = SegmentProgram(0, planned.programs[0], sizes, trained_shapes(segment))
    training = Training(steps=1, microbatches=1, microbatch_size=SAMPLES, optimizer=SGD(lr=0.1))
    load = Load("job-1", 1, planned.plan, training, [program], {}, "desk")
    receiver = StateReceiver(load, [0], 10**9, tensors.allocate)
    unused: Any = SimpleNamespace(post=None)  # nothing is posted to the codec thread
    running_job.RunningJob(
        "a", load, receiver, 10**9, TorchBackend(), unused, unused, limits(), unused, unused, bytes(32)
    )  # fmt: skip
    assert told == [is_quantized]

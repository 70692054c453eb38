"""Memory by formula against the peak of a process that trains, as the kernel tells it."""

from __future__ import annotations

import sys

import pytest
import torch
from benchmarks.estimates.footprint import Question, ask
from benchmarks.models.library import pictures, tokens
from benchmarks.models.resnet import ResNet
from examples.gpt import GPT, Config
from torch import Tensor, nn

from farflung.opdag.capture import capture
from farflung.planner import place
from farflung.planner.assignment import Assignment, memory_of
from farflung.planner.cutting.balanced import balanced_cut
from farflung.runtime.footprint import required_bytes
from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Muon, Optimizer
from farflung.runtime.optimizers.memory import memory_of_updates
from farflung.runtime.training import Training
from farflung.workload import workload_of

WINDOW, MICROBATCHES = 3, 9  # so that at the peak values wait two windows ahead
BESIDE = 2e6  # 1.3 MB were seen at most

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="a process's peak is read from /proc, which only Linux has"
)


def gpt() -> tuple[nn.Module, dict[str, Tensor]]:
    return GPT(Config(layers=3, heads=4, width=256, sequence=128)), tokens(128, 256)(8)


def resnet() -> tuple[nn.Module, dict[str, Tensor]]:
    return ResNet((1, 1, 1, 1), 100, width=48), pictures(96, 100)(8)


class Frozen(nn.Module):
    """A large frozen table, of which no copy is ever made, before two small layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40_000, 256).requires_grad_(False)
        self.first, self.last = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, words: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(self.table(words)))).square().mean()


def frozen() -> tuple[nn.Module, dict[str, Tensor]]:
    return Frozen(), {"words": torch.randint(40_000, (8, 64))}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "worker", "recompute", "optimizer"),
    [
        pytest.param(gpt, 0, False, AdamW(lr=0.1), marks=pytest.mark.full),
        pytest.param(gpt, 1, False, AdamW(lr=0.1), marks=pytest.mark.full),
        (gpt, 1, True, AdamW(lr=0.1)),
        (resnet, 1, False, SGD(lr=0.1)),
        (frozen, 0, False, AdamW(lr=0.1)),
        pytest.param(gpt, 0, False, Adafactor(), marks=pytest.mark.full),
        pytest.param(gpt, 0, False, Muon(lr=0.1, others=AdamW(lr=0.1)), marks=pytest.mark.full),
    ],
    ids=[
        "first of a gpt",
        "last of a gpt",
        "last of a gpt, recomputing",
        "last of a resnet",
        "frozen table",
        "adafactor",
        "muon",
    ],
)
def test_a_worker_needs_what_it_asks_for(
    build: object, worker: int, recompute: bool, optimizer: Optimizer
) -> None:
    """Within 10 %, and no more than 3 % too little, but for what a process takes beside its tensors."""
    module, batch = build()  # type: ignore[operator]
    graph, samples = capture(module, batch).graph, 8
    workload = workload_of(graph, MICROBATCHES, samples, updates=memory_of_updates(optimizer))
    cut = balanced_cut(workload, 2)
    workers = tuple((f"w{device}",) for device in cut.devices)
    assignment = Assignment(cut.cuts, workers, MICROBATCHES, WINDOW, recompute=(recompute,) * 2)
    planned = place(graph, assignment, samples)
    training = Training(10, MICROBATCHES, samples, optimizer)
    measured = ask(Question({worker: planned.programs[worker]}, planned.plan, training, recompute)).peak_bytes
    segment = planned.segments[worker]
    asked = required_bytes(segment, samples, WINDOW, recompute, memory_of_updates(optimizer))
    assert 0.97 * (measured - BESIDE) <= asked <= 1.10 * measured
    assert asked <= memory_of(workload, assignment, f"w{worker}") <= 1.10 * asked

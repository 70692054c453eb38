"""The step of one segment beside the user's own loop over the same module, on the device."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from benchmarks.gpu.clock import wait_for
from examples.gpt import GPT, Config
from torch import Tensor

from farflung.opdag.capture import capture
from farflung.planner import plan_graph
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.parity.steps import named_state
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.training import Training
from farflung.schedule import Unit

PAIRS = 20
MICROBATCHES = 2


class Size(NamedTuple):
    """A GPT, and the samples of a microbatch."""

    name: str
    width: int
    layers: int
    heads: int
    sequence: int
    samples: int


SIZES = [Size("launch-bound", 128, 4, 4, 128, 4), Size("124M", 768, 12, 12, 1024, 4)]
ON_CPU = 1
"""So many of the sizes on a CPU."""


def runner(device: torch.device) -> list[dict[str, object]]:
    """Milliseconds of a step (forward, backward, AdamW) in float32, and ours over eager's."""
    sizes = SIZES if device.type != "cpu" else SIZES[:ON_CPU]
    return [row(size, device) for size in sizes]


def row(size: Size, device: torch.device) -> dict[str, object]:
    """Alternate the two sides, each first in every other pair."""
    sides = ours(size, device), eager(size, device)
    for side in (*sides, *sides):
        side()
    found: dict[Callable[[], object], list[float]] = {side: [] for side in sides}
    for pair in range(PAIRS):
        for side in sides if pair % 2 else reversed(sides):
            wait_for(device)
            began = time.perf_counter()
            side()
            wait_for(device)
            found[side].append(time.perf_counter() - began)
    ratios = [one / other for one, other in zip(*found.values(), strict=True)]
    mine, theirs = (statistics.median(times) for times in found.values())
    return {
        "model": size.name,
        "ours_ms": round(1000 * mine, 2),
        "eager_ms": round(1000 * theirs, 2),
        "ratio": round(statistics.median(ratios), 3),
    }


def model(size: Size) -> GPT:
    """The module, on the CPU."""
    torch.manual_seed(0)
    config = Config(
        sequence=size.sequence, layers=size.layers, heads=size.heads, width=size.width, dropout=0.0
    )
    return GPT(config).train()


def batches(size: Size) -> list[dict[str, Tensor]]:
    """The microbatches of a step, on the host."""
    generator = torch.Generator().manual_seed(1)
    shape = (size.samples, size.sequence)
    return [
        {name: torch.randint(0, 256, shape, generator=generator) for name in ("tokens", "targets")}
        for _ in range(MICROBATCHES)
    ]


def ours(size: Size, device: torch.device) -> Callable[[], object]:
    """A step of the captured module as one segment."""
    module, given = model(size), batches(size)
    graph = capture(module, given[0]).graph
    training = Training(10**6, MICROBATCHES, size.samples, AdamW(lr=1e-4))
    (segment,) = plan_graph(graph, MICROBATCHES, size.samples, ["a"]).segments
    state = {
        name: tensor.detach().to(device) for name, tensor in named_state(copy.deepcopy(module), graph).items()
    }
    mine = TorchBackend(device).runner(segment, state, training)
    names = {entry.value: entry.name for entry in graph.inputs_of("input")}
    units = iter(range(10**6))

    def step() -> None:
        unit: Unit | None = training.units().at(next(units))
        assert unit is not None
        for number, batch in enumerate(given):
            mine.forward(unit, number, {value: batch[name] for value, name in names.items()})
            mine.backward(unit, number, {}, lambda value, gradient: None)
            mine.accumulate(unit, number)
        mine.square_sums()
        mine.take_loss()
        mine.apply(unit.step, 1.0)

    return step


def eager(size: Size, device: torch.device) -> Callable[[], object]:
    """A step as its author would write it: the norm of the gradients and the loss are read, too."""
    module, given = model(size).to(device), batches(size)
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=fused)

    def step() -> None:
        losses = []
        for batch in given:
            loss = module(**{name: tensor.to(device) for name, tensor in batch.items()}) / MICROBATCHES
            loss.backward()
            losses.append(loss.detach())
        norm = torch.nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
        float(norm + sum(losses))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step

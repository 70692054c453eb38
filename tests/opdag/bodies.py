"""Small modules whose forward a test writes, and what holds a captured one beside eager."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable

import pytest
import torch
from benchmarks.zoo import Batch
from torch import Tensor, nn

from farflung.errors import CaptureError
from farflung.opdag.capture import Capture, LossModule, capture
from farflung.opdag.graph import Precision
from farflung.planner import plan_graph
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parity.eager import Reference
from farflung.runtime.parity.steps import gradient_difference, named_state, parameter_names
from farflung.runtime.training import Training

torch.set_num_threads(1)
WIDTH = 4
Forward = Callable[["Base", Tensor, Tensor], object]


class Base(nn.Module):
    """Two layers, a buffer, and a forward given by the test."""

    def __init__(self, body: Forward) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = body
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> object:
        return self.body(self, x, y)


def pairs(samples: int = 3, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(samples, WIDTH, generator=generator) for name in ("x", "y")}


def error(z: Tensor, y: Tensor) -> Tensor:
    return ((z - y) ** 2).mean()


def plain(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return error(self.second(self.first(x)), y)


def difference_from_eager(
    module: nn.Module,
    captured: Capture,
    loss: Callable[[object, Batch], Tensor] | None = None,
    batch: Batch | None = None,
    precision: Precision = "float32",
) -> tuple[float, float]:
    """One step of two microbatches on both sides: relative loss difference, worst gradient difference."""
    graph, training = captured.graph, Training(1, 2, 3, SGD(lr=0.1))
    planned = plan_graph(graph, 2, 3, ["here"])
    eager = copy.deepcopy(module)
    wrapper = LossModule(eager, loss, precision)
    batches = [batch, batch] if batch else [pairs(seed=1), pairs(seed=2)]
    reference = Reference(eager, lambda b: wrapper(dict(b)), graph, training)
    state = named_state(copy.deepcopy(module), graph)
    pipeline = InProcessPipeline(graph, planned.plan, planned.segments, state, training)
    expected = reference.accumulate(batches)
    found = sum(share.loss for share in pipeline.run(0, batches))
    names = parameter_names(eager, graph)
    theirs = {names[id(p)]: p.grad for p in eager.parameters() if p.grad is not None}
    ours = {n: g for segment in pipeline.segments for n, g in segment.gradients().items()}
    return abs(found - expected) / abs(expected), gradient_difference(ours, theirs)[0]


def require_gradients_of_eager(
    module: nn.Module,
    captured: Capture,
    loss: Callable[[object, Batch], Tensor] | None = None,
    batch: Batch | None = None,
    precision: Precision = "float32",
) -> None:
    """Loss and every gradient are eager's."""
    in_loss, in_gradients = difference_from_eager(module, captured, loss, batch, precision)
    assert in_loss < 1e-6 and in_gradients < 1e-6


def line_of(function: Callable[..., object], text: str) -> str:
    """`file:line` of the first line of `function` that contains `text`."""
    lines, start = inspect.getsourcelines(function)
    at = next(number for number, line in enumerate(lines) if text in line)
    return f"{inspect.getsourcefile(function)}:{start + at}"


def refusal(module: nn.Module, batch: Batch | None = None) -> CaptureError:
    """How capture refuses `module`, in one line."""
    with pytest.raises(CaptureError) as raised:
        capture(module, batch or pairs())
    assert "\n" not in str(raised.value)
    return raised.value


def losses_of_steps(module: nn.Module, captured: Capture, steps: int) -> list[float]:
    """Of the same batch of three samples, by parameters that do not move."""
    graph, training = captured.graph, Training(steps, 1, 3, SGD(lr=0.0))
    planned = plan_graph(graph, 1, 3, ["here"])
    state = named_state(copy.deepcopy(module), graph)
    pipeline = InProcessPipeline(graph, planned.plan, planned.segments, state, training)
    found = []
    for step in range(steps):
        found.append(sum(share.loss for share in pipeline.run(step, [pairs()])))
        pipeline.decide(step, 1.0)
    return found

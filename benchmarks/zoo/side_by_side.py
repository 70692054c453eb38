"""A cut model and the eager module trained on the same microbatches, for tests to compare."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache

import torch
from benchmarks.zoo import Batch, Case
from torch import Tensor, nn

from farflung.opdag import wire
from farflung.opdag.capture import capture
from farflung.opdag.capture.capture import LossFunction, LossModule
from farflung.opdag.graph import Graph
from farflung.planner import PlannedJob, place, plan_graph
from farflung.planner.assignment import Assignment
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.parity.eager import Reference
from farflung.runtime.parity.steps import named_state, received
from farflung.runtime.torch_backend.device import HOST
from farflung.runtime.training import Training


@cache
def captured(case: Case, samples: int) -> tuple[nn.Module, Graph]:
    """A module of the case, which must not be changed, and its graph."""
    module = case.build()
    return module, capture(module, case.batch(max(2, samples), 1), case.loss).graph


def workers(count: int) -> list[str]:
    """Names of `count` workers."""
    return [f"worker-{number}" for number in range(count)]


def placed(
    graph: Graph, cuts: Sequence[int], names: Sequence[str], microbatches: int, samples: int
) -> PlannedJob:
    """Segment n, cut before the positions `cuts`, on the worker `names[n]`."""
    window = min(microbatches, 2 * len(names))
    assignment = Assignment(tuple(cuts), tuple((name,) for name in names), microbatches, window)
    return place(graph, assignment, samples)


class SideBySide:
    """Both sides from the same module, on one device; `module` itself stays as it is."""

    def __init__(
        self,
        module: nn.Module,
        graph: Graph,
        planned: PlannedJob,
        training: Training,
        device: torch.device = HOST,
        loss: LossFunction | None = None,
    ) -> None:
        self.graph = wire.load_graph(wire.dump(graph), training.microbatch_size)
        self.training = training
        self.eager = copy.deepcopy(module).to(device)
        wrapper = LossModule(self.eager, loss)

        def loss_of(batch: Batch) -> Tensor:
            with device:  # where a module makes tensors that are not told where
                return wrapper({name: tensor.to(device) for name, tensor in batch.items()})

        ours = copy.deepcopy(module).to(device)
        self.state = named_state(ours, self.graph)
        segments = received(planned.programs, training.microbatch_size)
        owned = [segment.owned for segment in segments]
        self.reference = Reference(self.eager, loss_of, self.graph, training, owned=owned)
        self.pipeline = InProcessPipeline(
            self.graph, planned.plan, segments, self.state, training, device=device
        )
        self._unit = 0

    def accumulate(self, microbatches: Sequence[Batch]) -> tuple[float, float]:
        """Forward and backward of one step on both sides: the two losses."""
        self.shares = self.pipeline.run(self._unit, microbatches)
        return sum(share.loss for share in self.shares), self.reference.accumulate(microbatches)

    def apply(self) -> None:
        """Clip and update both sides."""
        norm = gradient_norm(share.squares for share in self.shares)
        self.pipeline.decide(self._unit, clip_scale(self.training.global_clip, norm))
        self.reference.apply()
        self._unit += 1

    def gradients(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Gradients of the cut model and of the eager one, by the graph's names."""
        ours = {n: g for segment in self.pipeline.segments for n, g in segment.gradients().items()}
        named = named_state(self.eager, self.graph)
        return ours, {name: t.grad for name, t in named.items() if t.grad is not None}

    def states(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters and buffers of the cut model and of the eager one."""
        return self.state, named_state(self.eager, self.graph)


def microbatches(case: Case, samples: int, count: int, step: int) -> list[Batch]:
    """The microbatches of one step: different ones for each step and place."""
    return [case.batch(samples, 1000 * step + number) for number in range(count)]


def planned(graph: Graph, training: Training, count: int) -> PlannedJob:
    """The planner's cut for `count` workers."""
    return plan_graph(graph, training.microbatches, training.microbatch_size, workers(count))

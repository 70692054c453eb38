"""A model of the zoo trained by eager and by segments, step for step on the same microbatches."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.zoo.case import Case
from benchmarks.zoo.side_by_side import captured, microbatches
from torch import Tensor, nn

from farflung.opdag import wire
from farflung.opdag.capture.capture import LossModule
from farflung.opdag.graph import Graph
from farflung.planner import PlannedJob
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parity.eager import Reference
from farflung.runtime.parity.steps import gradient_difference, named_state, parameter_difference, received
from farflung.runtime.training import Training

SAMPLES, MICROBATCHES = 2, 3
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Step:
    """What one step of training found: its loss, all gradients, and the state that it left."""

    loss: float
    gradients: Tensors
    state: Tensors


@dataclass(frozen=True)
class Subject:
    """A model, its graph, and the steps that eager training takes."""

    case: Case
    module: nn.Module
    graph: Graph
    eager: list[Step]
    samples: int = SAMPLES


@dataclass(frozen=True)
class Difference:
    """The worst relative differences over some steps (docs/explanation/numerics.md)."""

    loss: float
    gradient: float
    state: float


def training(samples: int = SAMPLES) -> Training:
    """Three microbatches a step; SGD, which does not divide noise by noise."""
    return Training(100, MICROBATCHES, samples, SGD(lr=0.05, momentum=0.9), seed=5)


def subject_of(case: Case, steps: int, samples: int = SAMPLES) -> Subject:
    """The model captured, and trained eagerly for some steps."""
    module, graph = captured(case, SAMPLES)
    return Subject(case, module, graph, by_eager(case, module, graph, samples, steps), samples)


def by_eager(case: Case, module: nn.Module, graph: Graph, samples: int, steps: int) -> list[Step]:
    """The user's module in one process; `module` itself stays as it is."""
    eager = copy.deepcopy(module)
    wrapper = LossModule(eager, case.loss)
    reference = Reference(eager, lambda batch: wrapper(dict(batch)), graph, training(samples))
    found = []
    for step in range(steps):
        loss = reference.accumulate(microbatches(case, samples, MICROBATCHES, step))
        state = named_state(eager, graph)
        gradients = _copied({name: t.grad for name, t in state.items() if t.grad is not None})
        reference.apply()
        found.append(Step(loss, gradients, _copied(named_state(eager, graph))))
    return found


def by_segments(
    subject: Subject, planned: PlannedJob, samples: int, steps: int, verified: bool = True
) -> Iterator[Step]:
    """The cut model, its segments as a worker gets them; a step's state changes with the next step.

    Without `verified` shapes are not recomputed first, which takes as long as training does.
    """
    state = named_state(copy.deepcopy(subject.module), subject.graph)
    programs = planned.programs
    segments = received(programs, samples) if verified else [wire.load_segment(p, samples) for p in programs]
    pipeline = InProcessPipeline(subject.graph, planned.plan, segments, state, training(samples))
    for step in range(steps):
        shares = pipeline.run(step, microbatches(subject.case, samples, MICROBATCHES, step))
        gradients = {n: g for segment in pipeline.segments for n, g in segment.gradients().items()}
        gradients = _copied(gradients)
        pipeline.decide(step, 1.0)
        yield Step(sum(share.loss for share in shares), gradients, state)


def worst_difference(ours: Iterator[Step], theirs: Sequence[Step]) -> Difference:
    """How far two runs are apart, over all steps; a gradient that only one of them has is infinitely far."""
    worst = Difference(0.0, 0.0, 0.0)
    for found, expected in zip(ours, theirs, strict=True):
        gradient = gradient_difference(found.gradients, expected.gradients)[0]
        if not found.gradients.keys() <= expected.gradients.keys():
            gradient = float("inf")
        worst = Difference(
            max(worst.loss, abs(found.loss - expected.loss) / abs(expected.loss)),
            max(worst.gradient, gradient),
            max(worst.state, parameter_difference(found.state, expected.state)[0]),
        )
    return worst


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}

"""How far a model's gradients are from PyTorch's own on each backend that this environment has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import numpy as np
import torch
from benchmarks.zoo.case import Case
from benchmarks.zoo.on_backends import Pipeline
from benchmarks.zoo.parity import (
    MICROBATCHES,
    Step,
    Subject,
    by_segments,
    subject_of,
    training,
    worst_difference,
)
from benchmarks.zoo.side_by_side import microbatches, planned
from torch import Tensor, nn

from farflung.opdag import opset
from farflung.opdag.capture.capture import LossFunction, LossModule
from farflung.opdag.graph import Argument, Graph, Node
from farflung.planner import PlannedJob
from farflung.runtime.frameworks import COMPUTING, backend_called, is_installed
from farflung.runtime.parity.steps import named_state

SEGMENTS = 4
Difference = Callable[[Subject, int], float]
"""The worst relative gradient difference of a model over some steps."""


def available() -> dict[str, Difference]:
    """The frameworks that are installed here."""
    ways = {"torch": on_torch}
    return {name: ways.get(name, beside_torch(name)) for name in COMPUTING if is_installed(name)}


def on_torch(subject: Subject, steps: int) -> float:
    """Segments on PyTorch beside the user's module."""
    plan = planned(subject.graph, training(subject.samples), SEGMENTS)
    return worst_difference(by_segments(subject, plan, subject.samples, steps), subject.eager).gradient


def beside_torch(name: str) -> Difference:
    """Segments on another framework: beside the module, or beside PyTorch without dropout if there is any.

    What is drawn at random differs from one framework to another, so it cannot be compared. BatchNorm
    multiplies rounding errors, until they hide what else may be wrong: a model that has it is compared in
    float64.
    """

    def difference(subject: Subject, steps: int) -> float:
        if any("batch_norm" in node.op for node in subject.graph.nodes):
            subject = subject_of(in_float64(subject.case), steps, subject.samples)
        graph = without_dropout(subject.graph)
        plan = planned(graph, training(subject.samples), SEGMENTS)
        expected = subject.eager
        if graph != subject.graph:
            still = Subject(subject.case, subject.module, graph, [], subject.samples)
            expected = [_kept(step) for step in by_segments(still, plan, subject.samples, steps)]
        return worst_difference(_on(name, subject, graph, plan, steps), expected).gradient

    return difference


class _Precise(nn.Module):
    """A module that computes in float64; its loss is float32."""

    def __init__(self, module: nn.Module, loss: LossFunction | None) -> None:
        super().__init__()
        self.module = LossModule(module, loss).double()

    def forward(self, **batch: Tensor) -> Tensor:
        precise = {name: t.double() if t.is_floating_point() else t for name, t in batch.items()}
        loss: Tensor = self.module(precise)
        return loss.float()


def in_float64(case: Case) -> Case:
    """The same model with parameters, buffers and floating point inputs of float64."""
    return replace(case, build=lambda: _Precise(case.build(), case.loss), loss=None)


def without_dropout(graph: Graph) -> Graph:
    """The same graph with every probability of dropout 0."""
    return msgspec.structs.replace(graph, nodes=[_sure(node) for node in graph.nodes])


def _sure(node: Node) -> Node:
    if not opset.lookup(node.op).draws(node):
        return node
    never: dict[str, Argument] = {name: 0.0 for name in ("p", "dropout_p") if name in node.arguments}
    return msgspec.structs.replace(node, arguments={**node.arguments, **never})


def _kept(step: Step) -> Step:
    return Step(step.loss, step.gradients, {name: tensor.clone() for name, tensor in step.state.items()})


def _on(name: str, subject: Subject, graph: Graph, plan: PlannedJob, steps: int) -> Iterator[Step]:
    """Training on one framework, what it makes as tensors."""
    settings = training(subject.samples)
    state = named_state(subject.module, graph)
    backends = [backend_called(name)]
    pipeline = Pipeline(graph, plan.plan, plan.segments, _copies(state), settings, backends)
    for step in range(steps):
        shares = pipeline.run(step, microbatches(subject.case, subject.samples, MICROBATCHES, step))
        gradients = _tensors({n: g for runner in pipeline.runners() for n, g in runner.gradients().items()})
        pipeline.decide(step, 1.0)
        held = _tensors({n: a for runner in pipeline.runners() for n, a in runner.state().items()})
        yield Step(sum(share.loss for share in shares), gradients, held)


def _copies(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def _tensors(arrays: dict[str, object]) -> dict[str, Tensor]:
    return {name: torch.tensor(np.asarray(array)) for name, array in arrays.items()}

"""The models that farflung answers for: captured, cut anywhere, trained with microbatches in flight.

Eager trains once per model; each cut is held against what it found. A model whose tolerance is 0 agrees in
every bit; where others may differ, and by how much, stands with the model.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
import torch
from benchmarks.zoo import MODELS
from benchmarks.zoo.parity import (
    MICROBATCHES,
    SAMPLES,
    Step,
    Subject,
    by_eager,
    by_segments,
    subject_of,
    training,
    worst_difference,
)
from benchmarks.zoo.side_by_side import placed, planned, workers
from tests.support.by_hand import ByHand

from farflung.opdag.capture.capture import LossModule
from farflung.opdag.graph import Graph
from farflung.opdag.partition import legal_positions
from farflung.planner import PlannedJob
from farflung.runtime.optimizers.declared import SGD, AdamW
from farflung.runtime.parity.steps import Comparison, received
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.training import Training

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
STEPS = 3
RANDOM_STEPS = 2


FULL = {"resnet101", "qwen3"}
"""Only `make test-all` trains these: their blocks are those of another model that `make test` trains."""


def cases() -> list[Any]:
    """Every model of the zoo, the larger ones for `make test-all`."""
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.full] if case.name in FULL else [])
        for case in MODELS
    ]


@pytest.fixture(scope="module", params=cases())
def subject(request: pytest.FixtureRequest) -> Subject:
    return subject_of(request.param, STEPS)


def require_same(subject: Subject, ours: Iterator[Step], theirs: Sequence[Step]) -> None:
    tolerance = subject.case.tolerance
    difference = worst_difference(ours, theirs)
    assert difference.gradient <= tolerance
    assert difference.state <= tolerance
    assert difference.loss <= tolerance


def require_learnt(subject: Subject, ours: Iterator[Step], theirs: Sequence[Step]) -> None:
    """Loss and state after a first update, whose rounding is all there is in some gradients.

    So in those of a bias that BatchNorm takes away again: 6e-10 in the stereo network, beside 8e-2.
    """
    tolerance = subject.case.tolerance
    difference = worst_difference(ours, theirs)
    assert difference.state <= tolerance
    assert difference.loss <= tolerance
    assert difference.gradient == 0.0 or tolerance


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "count", [pytest.param(2, marks=pytest.mark.full), 4, pytest.param(7, marks=pytest.mark.full)]
)
def test_trains_as_eager_at_the_planners_cuts(subject: Subject, count: int) -> None:
    plan = planned(subject.graph, training(), count)
    assert plan.plan.workers() == workers(count)
    require_same(subject, by_segments(subject, plan, SAMPLES, STEPS), subject.eager)


@pytest.mark.cases(3)
@pytest.mark.parametrize("cuts", [8, pytest.param(30, marks=pytest.mark.full)])
def test_trains_as_eager_at_random_legal_cuts(subject: Subject, cuts: int) -> None:
    draw = random.Random(subject.case.name)
    for _ in range(cuts):
        plan = random_plan(subject.graph, draw)
        ours = by_segments(subject, plan, SAMPLES, RANDOM_STEPS, verified=False)
        require_same(subject, islice(ours, 1), subject.eager[:1])
        require_learnt(subject, ours, subject.eager[1:RANDOM_STEPS])


@pytest.mark.cases(4)
def test_goes_on_in_new_segments_of_another_cut(subject: Subject) -> None:
    """With the optimizer's state, so that two steps, a restore and one more are three steps."""
    name, declared = subject.case.name, AdamW(lr=1e-3)
    undisturbed, same, other = (ByHand(name, TorchBackend(), count, declared) for count in (3, 3, 2))
    undisturbed.steps(0, 2)
    state = undisturbed.state()
    loss = undisturbed.step(2)
    for run in (same, other):
        run.restore(state)
        assert run.state() == state
    assert same.step(2) == loss and same.state() == undisturbed.state()
    assert other.step(2) == pytest.approx(loss, rel=max(subject.case.tolerance, 1e-12))


def random_plan(graph: Graph, draw: random.Random) -> PlannedJob:
    """Cut at up to six legal places, dealt to up to four workers, those that share a parameter together."""
    legal = [at for at, ok in enumerate(legal_positions(graph)) if ok and 0 < at < len(graph.nodes)]
    cuts = sorted(draw.sample(legal, draw.randint(1, 6)))
    names = workers(draw.randint(1, 4))
    placement = [draw.choice(names) for _ in range(len(cuts) + 1)]
    together = users_together(graph, cuts)
    return placed(graph, cuts, [placement[first] for first in together], MICROBATCHES, SAMPLES)


def users_together(graph: Graph, cuts: Sequence[int]) -> list[int]:
    """For each segment the first one that it shares parameters with, directly or by way of others."""
    first = list(range(len(cuts) + 1))
    readers: dict[int, set[int]] = {}
    for at, node in enumerate(graph.nodes):
        for value in node.reads():
            readers.setdefault(value, set()).add(bisect_right(cuts, at))
    for entry in graph.inputs_of("parameter"):
        users = readers.get(entry.value, set())
        groups = {first[segment] for segment in users}
        first = [min(groups) if group in groups else group for group in first]
    return first


@pytest.mark.cases(10)
@pytest.mark.parametrize("samples", [1, 5])
def test_any_microbatch_size_trains(subject: Subject, samples: int) -> None:
    """Captured with 2 samples; one sample is too few for BatchNorm at a single point."""
    samples = max(samples, 3) if subject.graph.mutations else samples
    theirs = by_eager(subject.case, subject.module, subject.graph, samples, 1)
    plan = planned(subject.graph, training(samples), 2)
    require_same(subject, by_segments(subject, plan, samples, 1), theirs)


def test_evaluates_as_the_module_in_evaluation_mode(subject: Subject) -> None:
    settings = Training(1, MICROBATCHES, SAMPLES, SGD(lr=0.1), seed=5, validation_microbatches=1)
    plan = planned(subject.graph, settings, 3)
    loss = subject.case.loss
    comparison = Comparison(
        subject.module,
        lambda module: lambda batch: LossModule(module, loss)(dict(batch)),
        subject.graph,
        plan.plan,
        received(plan.programs, SAMPLES),
        settings,
    )
    batch = subject.case.batch(SAMPLES, 9)
    assert comparison.evaluation_difference(batch) <= max(subject.case.tolerance, 1e-6)

"""One run: a model is cut in four and trained over links that code, and judged with and without them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec
from benchmarks.learning.links import CodedPipeline, Links
from benchmarks.learning.outcome import Measured, Outcome
from benchmarks.learning.subject import Subject, plain
from benchmarks.learning.way import Way

from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.planner import PlannedJob, plan_graph
from farflung.plans import Plan
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.parity.steps import named_state, received
from farflung.runtime.training import Training

Tell = Callable[[str], None]


def plan_of(subject: Subject) -> Plan:
    """How every run of the subject is cut."""
    model = subject.model(0)
    graph = capture(model, subject.microbatches(subject.order(0), 0)[0]).graph
    return cut(graph, subject.training, subject.segments).plan


def train(subject: Subject, way: Way, seed: int, tell: Tell) -> Outcome:
    """Run the whole course."""
    training = msgspec.structs.replace(subject.training, seed=seed)
    order, held_out = subject.order(seed), subject.validation()
    model = subject.model(seed)
    example = subject.microbatches(order, 0)[0]
    graph = capture(model, example).graph
    planned = cut(graph, training, subject.segments)
    segments = received(planned.programs, training.microbatch_size)
    pipeline = CodedPipeline(graph, planned.plan, segments, named_state(model, graph), training)
    pipeline.links = links = Links(way, planned.plan, training)
    curve: list[Measured] = []
    losses: list[float] = []
    began = time.process_time()
    for unit in training.units():
        batches = subject.microbatches(order, unit.step) if unit.train else held_out
        links.begin(batches)
        shares = pipeline.run(unit.number, batches)
        loss = sum(share.loss for share in shares)
        norm = gradient_norm(share.squares for share in shares)
        pipeline.decide(unit.number, clip_scale(training.clip, norm))
        links.decided()
        if not math.isfinite(loss):
            break
        if not unit.train:
            curve.append(Measured(unit.step, loss, *plain(model, held_out)))
            continue
        losses.append(round(loss, 5))
        if unit.step % 50 == 49:
            spent = time.process_time() - began
            tell(
                f"{subject.name} {way.text} seed {seed}: step {unit.step + 1}, {loss:.3f}, {spent:.0f} CPU s"
            )
    return Outcome(
        subject.name, way.text, seed, training.steps, curve,
        links.forward.dense + links.backward.dense, links.forward.wire + links.backward.wire,
        links.forward.ratio, links.backward.ratio, time.process_time() - began,
        diverged=curve[-1].step < training.steps, losses=losses,
    )  # fmt: skip


def cut(graph: Graph, training: Training, segments: int) -> PlannedJob:
    """The planner's cut for so many equal workers."""
    workers = [f"worker-{number}" for number in range(segments)]
    return plan_graph(graph, training.microbatches, training.microbatch_size, workers)

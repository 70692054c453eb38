"""The same training with the codecs of a plan and without a network, in one process.

Steps to a loss are counted here: what a codec does to the numbers does not depend on the network, and every
loss of a system that raced must be one of these. Evaluation is plain: of the model as it would be exported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from benchmarks.race.course import Batches, Course
from benchmarks.race.numerics import Reference, follow

from farflung.client.capture.check import capture_shapes
from farflung.files import write_atomically
from farflung.opdag.graph import Graph
from farflung.opdag.partition import Partition
from farflung.planner.assignment import Assignment
from farflung.planner.placing import PlannedJob, place
from farflung.plans import Plan
from farflung.plans.codec_pair import CODEC_FORMAT, codebook_of
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.parity.steps import named_state, received


def coded_reference(course: Course, plan: Plan, folder: Path, tell: Callable[[str], None]) -> Reference:
    """Train `course` as `plan` cuts and writes it, or read what an earlier race of both left in `folder`."""
    given = msgspec.json.encode((course, _numbers_of(plan), str(torch.__version__), CODEC_FORMAT))
    key = hashlib.sha256(given).hexdigest()[:12]
    path = folder / f"coded-{key}.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Reference)
    tell(f"training {course.steps} steps with {course.codec} and without a network")
    found = _train(course, plan)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(found))
    return found


def _numbers_of(plan: Plan) -> Plan:
    """What of a plan changes a number: not who its workers are, how many microbatches are under way, or what
    was declared of a codec.
    """
    workers = dict.fromkeys(worker for placement in plan.placements for worker in placement.workers)
    names = {worker: f"worker-{number}" for number, worker in enumerate(workers)}
    placements = [
        msgspec.structs.replace(placement, workers=[names[worker] for worker in placement.workers])
        for placement in plan.placements
    ]
    codecs = [
        msgspec.structs.replace(link, source=names[link.source], target=names[link.target], ratio=1.0)
        for link in plan.codecs
    ]
    codecs.sort(key=lambda link: (link.source, link.target))
    return msgspec.structs.replace(plan, placements=placements, window=1, codecs=codecs)


def _train(course: Course, plan: Plan) -> Reference:
    model, batches = course.model().train(), Batches(course)
    job = msgspec.structs.replace(course, validate_every=0).job()
    graph = capture_shapes(job).graph
    training = job.training().with_codecs(codebook_of([course.codec]))
    placed = _placed(graph, plan, course.microbatch_size)
    segments = received(placed.programs, course.microbatch_size)
    pipeline = InProcessPipeline(graph, plan, segments, named_state(model, graph), training)

    def run(number: int) -> float:
        parts = {name: tensor.chunk(course.microbatches) for name, tensor in batches.step(number).items()}
        microbatches = [{name: part[m] for name, part in parts.items()} for m in range(course.microbatches)]
        loss = sum(share.loss for share in pipeline.run(number, microbatches))
        pipeline.decide(number, 1.0)
        return loss

    return follow(course, model, batches, run)


def _placed(graph: Graph, plan: Plan, microbatch_size: int) -> PlannedJob:
    """The segments that a plan means.

    Raises
    ------
    RuntimeError
        It is another model's, or its segments are not told by how many nodes they have.
    """
    assignment = Assignment(
        cuts=_cuts(graph, plan, microbatch_size),
        workers=tuple(tuple(placement.workers) for placement in plan.placements),
        microbatches=plan.microbatches,
        window=plan.window,
        shares=tuple(plan.shares),
        recompute=tuple(placement.recompute for placement in plan.placements),
        codecs=tuple(plan.codecs),
    )
    placed = place(graph, assignment, microbatch_size)
    if placed.plan != plan:
        raise RuntimeError("the run's plan is not of this model: its segments cannot be made anew")
    return placed


def _cuts(graph: Graph, plan: Plan, microbatch_size: int) -> tuple[int, ...]:
    """Where segments end that have as many nodes as the plan says; nodes that several need are in each."""
    cuts: tuple[int, ...] = ()
    for placement in plan.placements[:-1]:
        start = cuts[-1] if cuts else 0
        for end in range(min(start + placement.nodes, len(graph.nodes) - 1), start, -1):
            segment = Partition(graph, (*cuts, end), microbatch_size).segments()[placement.segment]
            if len(segment.nodes) == placement.nodes:
                cuts = (*cuts, end)
                break
    if len(cuts) < len(plan.placements) - 1:
        raise RuntimeError("the run's plan is not of this model: it has no such segments")
    return cuts

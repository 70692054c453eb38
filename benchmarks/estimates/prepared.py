"""A subject captured, cut and placed."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.estimates.subjects import SUBJECTS, Batch
from torch import Tensor

from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.opdag.segment import Segment
from farflung.planner import PlannedJob, place
from farflung.planner.assignment import Assignment
from farflung.planner.cutting.balanced import balanced_cut
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.optimizers.memory import memory_of_updates
from farflung.runtime.parity.steps import named_state, received
from farflung.runtime.training import Training
from farflung.workload import Workload, workload_of


@dataclass(frozen=True)
class Prepared:
    """A model in segments, with its state and microbatches, and where its cuts are."""

    name: str
    graph: Graph
    workload: Workload
    planned: PlannedJob
    assignment: Assignment
    segments: list[Segment]
    ranges: list[tuple[int, int]]
    training: Training
    state: dict[str, Tensor]
    batches: list[Batch]


def prepare(name: str, segments: int, window: int) -> Prepared:
    """Capture a subject and cut it into segments of about equal work."""
    subject = SUBJECTS[name]
    module, count = subject.build(), 2 * window
    batches = [subject.batch(subject.samples) for _ in range(count)]
    graph = capture(module, subject.batch(max(2, subject.samples))).graph
    training = Training(10**6, count, subject.samples, AdamW(lr=1e-6))
    workload = workload_of(graph, count, subject.samples, name, memory_of_updates(training.optimizer))
    cut = balanced_cut(workload, segments)
    workers = tuple((f"w{device}",) for device in cut.devices)
    assignment = Assignment(cut.cuts, workers, count, window)
    planned = place(graph, assignment, subject.samples)
    return Prepared(
        name=name,
        graph=graph,
        workload=workload,
        planned=planned,
        assignment=assignment,
        segments=received(planned.programs, subject.samples),
        ranges=assignment.ranges(len(workload)),
        training=training,
        state=named_state(module, graph),
        batches=batches,
    )

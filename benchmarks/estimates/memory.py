"""Peak memory of each worker of a plan, as the worker and the planner say, and as measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.estimates.footprint import Question, ask
from benchmarks.estimates.prepared import Prepared

from farflung.planner import place
from farflung.planner.assignment import memory_of
from farflung.runtime.footprint import worker_bytes
from farflung.runtime.optimizers.memory import memory_of_updates


@dataclass(frozen=True)
class MemoryRow:
    """One worker; errors are relative (0.1: the estimate is 10 % too much)."""

    model: str
    worker: str
    segments: list[int]
    window: int
    recompute: bool
    measured_bytes: int
    required_bytes: int
    planner_bytes: int

    @property
    def error(self) -> float:
        """Of what the worker asks."""
        return self.required_bytes / self.measured_bytes - 1

    @property
    def planner_error(self) -> float:
        """Of what the planner says."""
        return self.planner_bytes / self.measured_bytes - 1

    def line(self) -> str:
        """For people."""
        how = "recomputes" if self.recompute else "keeps"
        return (
            f"{self.model:18s} {self.worker} segments {self.segments} {how:10s}: "
            f"{self.measured_bytes / 1e6:8.1f} MB measured, worker says {self.error:+6.1%}, "
            f"planner {self.planner_error:+6.1%}"
        )


def memory_rows(prepared: Prepared) -> Iterator[MemoryRow]:
    """Every worker, keeping what it computed and recomputing it."""
    for again in (False, True):
        assignment = replace(prepared.assignment, recompute=(again,) * len(prepared.segments))
        planned = place(prepared.graph, assignment, prepared.training.microbatch_size)
        for worker in planned.plan.workers():
            numbers = planned.plan.segments_of(worker)
            programs = {number: planned.programs[number] for number in numbers}
            yield MemoryRow(
                model=prepared.name,
                worker=worker,
                segments=list(numbers),
                window=assignment.window,
                recompute=again,
                measured_bytes=ask(Question(programs, planned.plan, prepared.training, again)).peak_bytes,
                required_bytes=_required(prepared, numbers, again),
                planner_bytes=int(memory_of(prepared.workload, assignment, worker)),
            )


def _required(prepared: Prepared, numbers: Sequence[int], again: bool) -> int:
    training = prepared.training
    return worker_bytes(
        [prepared.segments[number] for number in numbers],
        training.microbatch_size,
        prepared.assignment.window,
        dict.fromkeys(numbers, again),
        memory_of_updates(training.optimizer),
    )

"""Seconds of each segment of a plan, as a profile says and as measured, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from benchmarks.estimates.prepared import Prepared

from farflung.opdag.analysis import sides_of
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.slots import update_rule_of
from farflung.runtime.torch_backend.profiling.profile import profile_graph
from farflung.workload.arrays import Floats
from farflung.workload.profile import DeviceProfile, node_seconds, update_seconds

PARTS = ("forward", "backward", "accumulate", "update")


@dataclass(frozen=True)
class TimeRow:
    """One model: seconds of a step, and errors (0.1: 10 % too much is predicted), by segment and by part."""

    model: str
    nodes: int
    kinds: int
    profile_seconds: float
    measured_seconds: float
    error: float
    segment_errors: list[float]
    part_errors: dict[str, float]

    def line(self) -> str:
        """For people."""
        segments = " ".join(f"{error:+6.1%}" for error in self.segment_errors)
        parts = ", ".join(f"{name} {error:+.1%}" for name, error in self.part_errors.items())
        return (
            f"{self.model:18s} {self.nodes:5d} nodes {self.kinds:4d} kinds, "
            f"profile {self.profile_seconds:5.1f} s; "
            f"step {1e3 * self.measured_seconds:8.1f} ms: {self.error:+6.1%}, segments {segments} ({parts})"
        )


class Stopwatch:
    """A pipeline whose segments' runs are timed: CPU seconds of this thread, by segment and part."""

    def __init__(self, pipeline: InProcessPipeline) -> None:
        self.pipeline = pipeline
        self.seconds = np.zeros((len(pipeline.segments), len(PARTS)))
        for number, segment in enumerate(pipeline.segments):
            for name, part in (
                ("forward", 0), ("backward", 1), ("accumulate", 2), ("square_sums", 3), ("apply", 3)
            ):  # fmt: skip
                if hasattr(segment, name):
                    setattr(segment, name, self._timed(number, part, getattr(segment, name)))

    def step(self, unit: int, batches: list) -> Floats:
        """Seconds of a step: [segments, parts]."""
        self.seconds[:] = 0
        self.pipeline.run(unit, batches)
        self.pipeline.decide(unit, 1.0)
        return self.seconds.copy()

    def _timed(self, number: int, part: int, run: Callable) -> Callable:
        def timed(*arguments: object) -> object:
            begin = time.thread_time()
            result = run(*arguments)
            self.seconds[number, part] += time.thread_time() - begin
            return result

        return timed


def time_row(prepared: Prepared, rounds: int) -> TimeRow:
    """Profile and train one model in turns."""
    training, graph = prepared.training, prepared.graph
    watch = Stopwatch(
        InProcessPipeline(graph, prepared.planned.plan, prepared.segments, prepared.state, training)
    )
    watch.step(0, prepared.batches)
    measured, predicted, cost = [], [], []
    for number in range(1, rounds + 1):
        begin = time.perf_counter()
        profile = profile_graph(
            graph, training.microbatch_size, prepared.state, prepared.batches[0], training.optimizer
        )
        cost.append(time.perf_counter() - begin)
        predicted.append(_predicted(prepared, profile))
        measured.append(watch.step(number, prepared.batches))
    real, said = (np.median(found, axis=0) for found in (measured, predicted))
    return TimeRow(
        model=prepared.name,
        nodes=len(graph.nodes),
        kinds=len(profile.times),
        profile_seconds=statistics.median(cost),
        measured_seconds=float(real.sum()),
        error=float(said.sum() / real.sum() - 1),
        segment_errors=list(said.sum(axis=1) / real.sum(axis=1) - 1),
        part_errors=dict(zip(PARTS, said.sum(axis=0) / real.sum(axis=0) - 1, strict=True)),
    )


def _predicted(prepared: Prepared, profile: DeviceProfile) -> Floats:
    """Seconds of a step: [segments, parts]; what is recomputed in several segments costs nothing."""
    nodes = node_seconds(prepared.workload, prepared.graph, profile)
    count, rule = prepared.training.microbatches, partial(update_rule_of, prepared.training.optimizer)
    rows = []
    for (start, stop), segment in zip(prepared.ranges, prepared.segments, strict=True):
        forward, inputs, weights = (float(part[start:stop].sum()) for part in nodes)
        if sides_of(segment) is None:  # all of it is accumulation
            inputs, weights = 0.0, inputs + weights
        update = update_seconds(prepared.graph, rule, profile, segment.owned)
        rows.append([count * forward, count * inputs, count * weights, update])
    return np.array(rows)

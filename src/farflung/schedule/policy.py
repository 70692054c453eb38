"""The schedule policy: alternate backward and forward, later segments first, parameter gradients last.

A microbatch takes three tasks of a segment: *forward*; *backward*, which computes and sends the gradients of
received values; and *accumulate*, which adds up the gradients of parameters. No other worker waits for the
last one, so it runs when nothing else is ready.

If tasks of one direction are ready, they run; if both are, the direction that did not run last. Always
running backward first would starve later segments: a device with a backlog of gradients sends no values until
it has finished them, and then waits for a whole round trip. (On random chains of unequal devices and links,
alternating was more than 1 % faster in every fifth case when accumulation did not come last, and is so in one
of a hundred now: `benchmarks/simulator.py`.)

Readiness chooses between segments and kinds of task, never between microbatches. Within a segment forwards
run in ascending microbatch order, and so do backwards and accumulations, because another order changes the
sums (DESIGN: the same microbatches in another order move AdamW's parameters by 4e-5 in 50 steps).

Admission is decided in one place: a *source* segment (one that reads model inputs only) admits microbatch m
while m - (oldest unfinished) < W. Everything downstream is then bounded by W as well. No segment holds more
than W microbatches between their forward and the end of their accumulation: if there is no room for a
forward, the oldest accumulation runs first, and that waits for nothing. So after admission no task waits for
memory, and no order or limit can cause a deadlock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol


class TaskKind(StrEnum):
    """The tasks of a microbatch in a segment, in this order."""

    FORWARD = "forward"
    BACKWARD = "backward"
    ACCUMULATE = "accumulate"


class Task(NamedTuple):
    """One task of one segment on one microbatch."""

    segment: int
    kind: TaskKind
    microbatch: int


@dataclass(frozen=True)
class Needs:
    """The messages per microbatch that a segment needs before its forward and before its backward.

    `values` counts incoming edges (model inputs included), `gradients` outgoing ones. `source` is true for a
    segment that no other segment sends values to. A segment that `recomputes` has a tape only from a backward
    to its accumulation, and room for only one.
    """

    segment: int
    values: int
    gradients: int
    source: bool
    recomputes: bool = False


class Crossing(Protocol):
    """An edge from a segment, or the feeder (a negative number), to a segment; one message per microbatch."""

    @property
    def source(self) -> int: ...

    @property
    def target(self) -> int: ...


def needs_of(
    segments: Iterable[int], edges: Iterable[Crossing], recomputing: Container[int] = ()
) -> list[Needs]:
    """The needs of each of `segments`, given all edges of the plan and which segments recompute."""
    values: Counter[int] = Counter()
    gradients: Counter[int] = Counter()
    inner: set[int] = set()
    for edge in edges:
        values[edge.target] += 1
        gradients[edge.source] += 1
        if edge.source >= 0:
            inner.add(edge.target)
    return [
        Needs(segment, values[segment], gradients[segment], segment not in inner, segment in recomputing)
        for segment in segments
    ]


class _Progress:
    """The progress of one segment in one unit."""

    def __init__(self, needs: Needs, microbatches: Sequence[int]) -> None:
        self.needs = needs
        self._microbatches = microbatches
        self.values = [0] * len(microbatches)
        self.gradients = [0] * len(microbatches)
        self.forwards = 0
        self.backwards = 0
        self.accumulations = 0

    def task(self, kind: TaskKind) -> Task:
        """The next task of this kind."""
        if kind is TaskKind.FORWARD:
            done = self.forwards
        else:
            done = self.backwards if kind is TaskKind.BACKWARD else self.accumulations
        return Task(self.needs.segment, kind, self._microbatches[done])

    @property
    def can_accumulate(self) -> bool:
        """Whether there is a backward whose accumulation has not run."""
        return self.accumulations < self.backwards


class Policy:
    """Chooses the next task of one worker within one unit; holds no tensors, no clock, no sockets.

    `microbatches` are the numbers of those that run here, ascending: all of the unit's, or those of one
    pipeline of several. An evaluation pass (`train` false) has backward tasks, too. They compute and send
    nothing, but release the microbatch, so that the same admission rule applies. It has no accumulations.
    """

    def __init__(
        self, segments: Sequence[Needs], microbatches: Sequence[int], window: int, train: bool = True
    ) -> None:
        self._progress = {
            needs.segment: _Progress(needs, microbatches)
            for needs in sorted(segments, key=lambda n: -n.segment)
        }
        self._count = len(microbatches)
        self._places = {number: at for at, number in enumerate(microbatches)}
        self._window = window
        self._train = train
        self._ran_backward = False

    def arrived(self, segment: int, microbatch: int, gradient: bool) -> None:
        """Count one message for `segment`: a value of its forward, or a gradient of its backward."""
        progress = self._progress[segment]
        (progress.gradients if gradient else progress.values)[self._places[microbatch]] += 1

    def next(self) -> Task | None:
        """The task to run now, or None while everything waits for messages."""
        if self._ran_backward:
            urgent = self._next_forward() or self._next_backward()
        else:
            urgent = self._next_backward() or self._next_forward()
        return urgent or self._next_accumulation()

    def finished(self, task: Task) -> None:
        """Record that `task` has run."""
        progress = self._progress[task.segment]
        if task.kind is TaskKind.ACCUMULATE:
            progress.accumulations += 1
            return
        self._ran_backward = task.kind is TaskKind.BACKWARD
        if not self._ran_backward:
            progress.forwards += 1
            return
        progress.backwards += 1
        if not self._train:
            progress.accumulations += 1

    @property
    def done(self) -> bool:
        """Whether every segment has finished every microbatch."""
        return all(p.accumulations == self._count for p in self._progress.values())

    def _next_backward(self) -> Task | None:
        """The next backward, or the accumulation that makes room for it."""
        for progress in self._progress.values():
            if self._backward_ready(progress):
                is_full = progress.needs.recomputes and progress.can_accumulate
                return progress.task(TaskKind.ACCUMULATE if is_full else TaskKind.BACKWARD)
        return None

    def _next_forward(self) -> Task | None:
        """The next forward, or the accumulation that makes room for it."""
        for progress in self._progress.values():
            if self._forward_ready(progress):
                if progress.forwards - progress.accumulations < self._window:
                    return progress.task(TaskKind.FORWARD)
                if progress.can_accumulate:
                    return progress.task(TaskKind.ACCUMULATE)
        return None

    def _next_accumulation(self) -> Task | None:
        for progress in self._progress.values():
            if progress.can_accumulate:
                return progress.task(TaskKind.ACCUMULATE)
        return None

    def _backward_ready(self, progress: _Progress) -> bool:
        microbatch = progress.backwards
        return microbatch < progress.forwards and progress.gradients[microbatch] == progress.needs.gradients

    def _forward_ready(self, progress: _Progress) -> bool:
        microbatch = progress.forwards
        if microbatch >= self._count or progress.values[microbatch] < progress.needs.values:
            return False
        return not progress.needs.source or microbatch - progress.backwards < self._window


MOST_WAITING = 4
"""Limit on tensors that wait for the codec thread; the compute thread blocks when it is reached."""

"""What a worker runs next: backward and forward in turns, later segments before earlier ones, weights last.

A microbatch takes three tasks of a segment: *forward*; *backward*, which makes the gradients of what was
received and sends them; and *accumulate*, which adds up the gradients of parameters. Nobody waits for the
last one, so it runs when nothing else is ready.

Where one direction is ready it runs; where both are, the one that did not run last. Backward always first
starves what comes after: a device with a backlog of gradients sends nothing on until it is through with them,
and then waits for a whole round trip (on random chains of unequal devices and links, turns were more than 1 %
faster in every fifth case while weights did not come last, and are so in one of a hundred now:
`benchmarks/simulator.py`).

Readiness chooses between segments and kinds, never between microbatches: within a segment forwards run in
ascending microbatch order and so do backwards and accumulations, because another order changes the sums
(DESIGN: the same microbatches in another order move AdamW's parameters by 4e-5 in 50 steps).

Admission is decided in one place: a *source* segment (one that reads model inputs only) admits microbatch m
while m - (oldest unfinished) < W. Everything downstream is then bounded by W as well. What waits to be
accumulated is bounded with it: no segment holds more than W microbatches between their forward and the end of
their accumulation, because a forward for which there is no room is preceded by the oldest accumulation, which
waits for nobody. So after admission nothing waits for memory, and no order and no limit can deadlock.

How far a worker's compute thread may go ahead of the one that writes what leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol


class TaskKind(StrEnum):
    """What a segment does for a microbatch, in this order."""

    FORWARD = "forward"
    BACKWARD = "backward"
    ACCUMULATE = "accumulate"


class Task(NamedTuple):
    """One run of one segment on one microbatch."""

    segment: int
    kind: TaskKind
    microbatch: int


@dataclass(frozen=True)
class Needs:
    """What a segment waits for: messages per microbatch before its forward and before its backward.

    `values` counts incoming edges (model inputs included), `gradients` outgoing ones. `source` is true for a
    segment that no other segment feeds. One that `recomputes` has a tape only from a backward to its
    accumulation, and no room for two of them.
    """

    segment: int
    values: int
    gradients: int
    source: bool
    recomputes: bool = False


class Crossing(Protocol):
    """What goes from one segment, or the feeder (a negative number), to another once a microbatch."""

    @property
    def source(self) -> int: ...

    @property
    def target(self) -> int: ...


def needs_of(
    segments: Iterable[int], edges: Iterable[Crossing], recomputing: Container[int] = ()
) -> list[Needs]:
    """What each of `segments` waits for, given all edges of the plan and which segments recompute."""
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
    """How far one segment has come in one unit."""

    def __init__(self, needs: Needs, microbatches: int) -> None:
        self.needs = needs
        self.values = [0] * microbatches
        self.gradients = [0] * microbatches
        self.forwards = 0
        self.backwards = 0
        self.accumulations = 0

    def task(self, kind: TaskKind) -> Task:
        """The next task of this kind."""
        if kind is TaskKind.FORWARD:
            return Task(self.needs.segment, kind, self.forwards)
        done = self.backwards if kind is TaskKind.BACKWARD else self.accumulations
        return Task(self.needs.segment, kind, done)

    @property
    def can_accumulate(self) -> bool:
        """Whether a backward has run whose accumulation has not."""
        return self.accumulations < self.backwards


class Policy:
    """Chooses tasks of one worker within one unit; holds no tensors, no clock, no sockets.

    An evaluation pass (`train` false) has backward tasks too: they compute nothing and carry no bytes, they
    only release the microbatch, so that one admission rule serves both. It has nothing to accumulate.
    """

    def __init__(self, segments: Sequence[Needs], microbatches: int, window: int, train: bool = True) -> None:
        self._progress = {
            needs.segment: _Progress(needs, microbatches)
            for needs in sorted(segments, key=lambda n: -n.segment)
        }
        self._microbatches = microbatches
        self._window = window
        self._train = train
        self._ran_backward = False

    def arrived(self, segment: int, microbatch: int, gradient: bool) -> None:
        """Count one message for `segment`: a value of its forward, or a gradient of its backward."""
        progress = self._progress[segment]
        (progress.gradients if gradient else progress.values)[microbatch] += 1

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
        """Whether every segment is through with every microbatch."""
        return all(p.accumulations == self._microbatches for p in self._progress.values())

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
        if microbatch >= self._microbatches or progress.values[microbatch] < progress.needs.values:
            return False
        return not progress.needs.source or microbatch - progress.backwards < self._window


MOST_WAITING = 4
"""Tensors that wait to be written at once; who has more waits for them."""

"""What a worker runs next: backward and forward in turns, later segments before earlier ones.

Where one direction is ready it runs; where both are, the one that did not run last. Backward always first
starves what comes after: a device with a backlog of gradients sends nothing on until it is through with them,
and then waits for a whole round trip (on random chains of unequal devices and links, turns are more than 1 %
faster in every fifth case and slower in hardly any: `benchmarks/simulator.py`).

Readiness chooses between segments and directions, never between microbatches: within a segment forwards
run in ascending microbatch order and so do backwards, because another order changes the sums (DESIGN: the
same microbatches in another order move AdamW's parameters by 4e-5 in 50 steps).

Admission is decided in one place: a *source* segment (one that reads model inputs only) admits microbatch m
while m - (oldest unfinished) < W. Everything downstream is then bounded by W as well, and after admission
nothing waits for memory, so no order and no limit can deadlock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Task(NamedTuple):
    """One run of one segment on one microbatch, forward or backward."""

    segment: int
    backward: bool
    microbatch: int


@dataclass(frozen=True)
class Needs:
    """What a segment waits for: messages per microbatch before its forward and before its backward.

    `values` counts incoming edges (model inputs included), `gradients` outgoing ones. `source` is true for a
    segment that no other segment feeds.
    """

    segment: int
    values: int
    gradients: int
    source: bool


class Crossing(Protocol):
    """What goes from one segment, or the feeder (a negative number), to another once a microbatch."""

    @property
    def source(self) -> int: ...

    @property
    def target(self) -> int: ...


def needs_of(segments: Iterable[int], edges: Iterable[Crossing]) -> list[Needs]:
    """What each of `segments` waits for, given all edges of the plan."""
    values: Counter[int] = Counter()
    gradients: Counter[int] = Counter()
    inner: set[int] = set()
    for edge in edges:
        values[edge.target] += 1
        gradients[edge.source] += 1
        if edge.source >= 0:
            inner.add(edge.target)
    return [
        Needs(segment, values[segment], gradients[segment], source=segment not in inner)
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


class Policy:
    """Chooses tasks of one worker within one unit; holds no tensors, no clock, no sockets.

    An evaluation pass has backward tasks too: they compute nothing and carry no bytes, they only release the
    microbatch, so that one admission rule serves both.
    """

    def __init__(self, segments: Sequence[Needs], microbatches: int, window: int) -> None:
        self._progress = {
            needs.segment: _Progress(needs, microbatches)
            for needs in sorted(segments, key=lambda n: -n.segment)
        }
        self._microbatches = microbatches
        self._window = window
        self._ran_backward = False

    def arrived(self, segment: int, microbatch: int, gradient: bool) -> None:
        """Count one message for `segment`: a value of its forward, or a gradient of its backward."""
        progress = self._progress[segment]
        (progress.gradients if gradient else progress.values)[microbatch] += 1

    def next(self) -> Task | None:
        """The task to run now, or None while everything waits for messages."""
        if self._ran_backward:
            return self._next_forward() or self._next_backward()
        return self._next_backward() or self._next_forward()

    def finished(self, task: Task) -> None:
        """Record that `task` has run."""
        progress = self._progress[task.segment]
        self._ran_backward = task.backward
        if task.backward:
            progress.backwards += 1
        else:
            progress.forwards += 1

    @property
    def done(self) -> bool:
        """Whether every segment has run every microbatch forward and backward."""
        return all(p.backwards == self._microbatches for p in self._progress.values())

    def _next_backward(self) -> Task | None:
        for progress in self._progress.values():
            if self._backward_ready(progress):
                return Task(progress.needs.segment, True, progress.backwards)
        return None

    def _next_forward(self) -> Task | None:
        for progress in self._progress.values():
            if self._forward_ready(progress):
                return Task(progress.needs.segment, False, progress.forwards)
        return None

    def _backward_ready(self, progress: _Progress) -> bool:
        microbatch = progress.backwards
        return microbatch < progress.forwards and progress.gradients[microbatch] == progress.needs.gradients

    def _forward_ready(self, progress: _Progress) -> bool:
        microbatch = progress.forwards
        if microbatch >= self._microbatches or progress.values[microbatch] < progress.needs.values:
            return False
        return not progress.needs.source or microbatch - progress.backwards < self._window

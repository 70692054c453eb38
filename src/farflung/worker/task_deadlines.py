"""When what the compute thread is at takes too long: the decision, without a clock or a thread.

An op that runs cannot be interrupted, neither PyTorch's nor XLA's: only the end of its process ends it. So
all that is said here is that a worker must leave, and why.

What the compute thread is at, written by it and read by the event loop, and how long its passes take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from farflung.errors import GraphError
from farflung.opdag.cost import flops
from farflung.opdag.segment import Segment
from farflung.schedule import TaskKind
from farflung.worker.state import Attempt

TIMES = 20.0
"""What takes over so many times its estimate is stopped."""
LEARNT = 5
"""After so many passes of a kind their median is the estimate. It is taken once: what a stranger's job needs
more from pass to pass must not raise what it is given."""

PASS_FACTORS = {TaskKind.FORWARD: 1.0, TaskKind.BACKWARD: 3.0, TaskKind.ACCUMULATE: 3.0}
"""Of a forward pass, by formula: gradients of values and of parameters, and forward once more where that is
recomputed. Where a backward pass cannot be divided, all of it is in one of the two."""
BYTES_PER_SECOND = 1e9
STATE_BYTES_PER_SECOND = 1e8
"""What is hashed and copied of parameters at least."""
LEAST_TFLOPS = 1e-3
"""What memory and device do at least, where nothing better is known."""
COMPILE_SECONDS = 0.06
"""For each node (docs/measurements/models.md, "Compiling for JAX")."""


@dataclass(frozen=True)
class Limits:
    """What a worker's owner lends to a job, in time.

    A pass may take `pass_seconds` however short it should be and `longest_pass_seconds` however long, and a
    job of which any pass, a backward one too, is expected to take more than that is refused. Whatever else a
    device does for a job may take `chore_seconds`, and a second more for each 100 MB of parameters that it
    verifies or hands out. Whatever is done for a job that is over may take no more than `chore_seconds`.
    """

    tflops: float
    pass_seconds: float
    longest_pass_seconds: float
    chore_seconds: float


@dataclass(frozen=True, eq=False)
class Doing:
    """One thing that the compute thread is at, in words, and the seconds that are allowed and expected."""

    what: str
    allowed_seconds: float
    expected_seconds: float | None = None


@dataclass(frozen=True)
class Watch:
    """How long the compute thread has been at one thing, as far as somebody was there to see it.

    A process that was stopped for a while, or slept with its machine, has seen none of that while.
    """

    doing: Doing | None = None
    seconds: float = 0.0

    def seen(self, doing: Doing | None, seconds: float) -> Watch:
        """After `seconds` more, in which the thread was at `doing`."""
        if doing is not self.doing:
            return Watch(doing)
        return Watch(doing, self.seconds + seconds if doing else 0.0)

    def overrun(self, most_seconds: float = math.inf) -> str:
        """What takes too long, in words; nothing while all is well.

        No more than `most_seconds` are allowed, whatever it is.
        """
        doing = self.doing
        if doing is None:
            return ""
        allowed, expected = min(doing.allowed_seconds, most_seconds), doing.expected_seconds
        if self.seconds <= allowed:
            return ""
        whose = "" if allowed == doing.allowed_seconds else ", for a job that is over"
        beside = "" if expected is None else f", {expected:.3g} s were expected"
        return f"{doing.what} has taken over {allowed:.0f} s{whose}{beside}"


def most_seconds(running: Attempt, wanted: Attempt | None, chore_seconds: float) -> float:
    """What anything may take that the compute thread does for the attempt `running`.

    Once another one is wanted, or none, the broker lends the device anew: a job must not wait behind the long
    pass of another.
    """
    return math.inf if running == wanted else chore_seconds


def of_state(what: str, size: int, chore_seconds: float) -> Doing:
    """Going through `size` bytes of parameters."""
    return Doing(what, chore_seconds + size / STATE_BYTES_PER_SECOND)


Kind = tuple[int, TaskKind, bool]  # segment, what it does, whether it trains


@dataclass
class Passes:
    """What one job's passes are expected to take: by formula, then by what the first of a kind took."""

    limits: Limits
    forward_seconds: Mapping[int, float]
    nodes: int
    _took: dict[Kind, list[float]] = field(default_factory=dict)
    _learnt: dict[Kind, float] = field(default_factory=dict)

    @classmethod
    def of(cls, segments: Mapping[int, Segment], batch: int, limits: Limits) -> Passes:
        """For microbatches of `batch` samples.

        Raises
        ------
        GraphError
            A pass would take longer than this worker's owner gives.
        """
        found = {number: forward_seconds(s, batch, limits.tflops) for number, s in segments.items()}
        for number, forward in found.items():
            seconds = max(PASS_FACTORS.values()) * forward
            if seconds > limits.longest_pass_seconds:
                raise GraphError(
                    f"one microbatch would take about {seconds:.0f} s to pass segment {number} here, at most "
                    f"{limits.longest_pass_seconds:.0f} s are given: use smaller microbatches or more workers"
                )
        return cls(limits, found, sum(len(segment.nodes) for segment in segments.values()))

    def doing(self, kind: Kind, microbatch: int) -> Doing:
        """What a pass of a microbatch is called, and what it may take."""
        segment, task, train = kind
        expected = self._learnt.get(kind, PASS_FACTORS[task] * self.forward_seconds[segment])
        name = f"the {task} pass" if train else f"the {task} pass of an evaluation"
        what = f"{name} of microbatch {microbatch + 1} through segment {segment}"
        allowed = min(TIMES * expected, self.limits.longest_pass_seconds)
        return Doing(what, max(allowed, self.limits.pass_seconds), expected)

    def took(self, kind: Kind, seconds: float) -> None:
        """A pass of this kind is over."""
        if kind in self._learnt:
            return
        measured = self._took.setdefault(kind, [])
        measured.append(seconds)
        if len(measured) == LEARNT:
            self._learnt[kind] = median(self._took.pop(kind))

    def compiling(self) -> Doing:
        """Making all segments ready to run, where a backend compiles them."""
        expected = COMPILE_SECONDS * self.nodes
        allowed = min(TIMES * expected, self.limits.longest_pass_seconds)
        return Doing("compiling the segments", max(allowed, self.limits.chore_seconds), expected)


def forward_seconds(segment: Segment, batch: int, tflops: float) -> float:
    """What a forward pass takes by formula: its operations, and the bytes that its nodes read and write."""
    values = segment.values
    operations = sum(flops(node, values, batch) for node in segment.nodes)
    moved = sum(values[v].bytes(batch) for node in segment.nodes for v in (*node.reads(), *node.writes()))
    return operations / (max(tflops, LEAST_TFLOPS) * 1e12) + moved / BYTES_PER_SECOND


class Stopwatch:
    """`doing` is replaced as a whole: another thread that looks at it sees one thing or the next."""

    def __init__(self) -> None:
        self.doing: Doing | None = None

    @contextmanager
    def during(self, doing: Doing) -> Iterator[None]:
        """Say that the thread is at `doing` for as long as the block runs."""
        before, self.doing = self.doing, doing
        try:
            yield
        finally:
            self.doing = before

    @contextmanager
    def passing(self, passes: Passes, kind: Kind, microbatch: int) -> Iterator[None]:
        """Time a pass of a microbatch."""
        with self.during(passes.doing(kind, microbatch)):
            began = time.perf_counter()
            yield
            passes.took(kind, time.perf_counter() - began)

"""Decide when a task of the compute thread takes too long.

A running op cannot be interrupted, neither PyTorch's nor XLA's; only the end of its process ends it. So the
only decision here is that a worker must leave, and why. `Passes` estimates how long each kind of task takes;
`Stopwatch` holds what the compute thread is doing, for the event loop to read; `Watch` compares the two.
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
from farflung.worker.events import Attempt

TIMES = 20.0
"""A task is stopped after this many times its estimate."""
LEARNED_AFTER = 5
"""After this many passes of a kind, their median becomes the estimate. It is fixed from then on, so that a
job cannot raise its own limit by getting slower from pass to pass."""

PASS_FACTORS = {TaskKind.FORWARD: 1.0, TaskKind.BACKWARD: 3.0, TaskKind.ACCUMULATE: 3.0}
"""Estimate of a backward pass, in forward passes: gradients of values and of parameters, and the forward pass
again if it is recomputed. If a backward pass cannot be divided, one of the two tasks does all of it."""
BYTES_PER_SECOND = 1e9
STATE_BYTES_PER_SECOND = 1e8
"""Lower bound on the rate at which parameters are hashed and copied."""
LEAST_TFLOPS = 1e-3
"""Lower bound on the speed of memory and device if it is not known."""
COMPILE_SECONDS = 0.06
"""Compile time allowed per node (docs/measurements/models.md, "Compiling for JAX")."""


@dataclass(frozen=True)
class Limits:
    """Time limits that a worker's owner sets for jobs.

    A pass may always take `pass_seconds`, and never more than `longest_pass_seconds`; a job with a pass
    (forward or backward) that is expected to take longer is refused. Any other task may take `chore_seconds`,
    plus a second for each 100 MB of parameters that it verifies or sends back. Work for a job that is over
    may take at most `chore_seconds`.
    """

    tflops: float
    pass_seconds: float
    longest_pass_seconds: float
    chore_seconds: float


@dataclass(frozen=True, eq=False)
class Doing:
    """One activity of the compute thread: its description, and the seconds that are allowed and expected."""

    what: str
    allowed_seconds: float
    expected_seconds: float | None = None


@dataclass(frozen=True)
class Watch:
    """How long the compute thread has been doing one thing, counting only time in which the process ran.

    Time in which the process was stopped, or its machine slept, does not count.
    """

    doing: Doing | None = None
    seconds: float = 0.0

    def seen(self, doing: Doing | None, seconds: float) -> Watch:
        """The watch after `seconds` more, in which the thread was doing `doing`."""
        if doing is not self.doing:
            return Watch(doing)
        return Watch(doing, self.seconds + seconds if doing else 0.0)

    def overrun(self, most_seconds: float = math.inf) -> str:
        """Describe the activity that takes too long; empty if none does.

        No activity may take longer than `most_seconds`.
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
    """Limit on any activity of the compute thread for the attempt `running`.

    It applies once the broker wants another attempt, or none: a job must not wait for the long pass of
    another.
    """
    return math.inf if running == wanted else chore_seconds


def of_state(what: str, size: int, chore_seconds: float) -> Doing:
    """The activity of hashing or copying `size` bytes of parameters."""
    return Doing(what, chore_seconds + size / STATE_BYTES_PER_SECOND)


Kind = tuple[int, TaskKind, bool]  # segment, what it does, whether it trains


@dataclass
class Passes:
    """Expected durations of one job's passes: by formula at first, then by measurement."""

    limits: Limits
    forward_seconds: Mapping[int, float]
    nodes: int
    _measured: dict[Kind, list[float]] = field(default_factory=dict)
    _learned: dict[Kind, float] = field(default_factory=dict)

    @classmethod
    def of(cls, segments: Mapping[int, Segment], batch: int, limits: Limits) -> Passes:
        """Estimate the passes for microbatches of `batch` samples.

        Raises
        ------
        GraphError
            A pass would take longer than this worker's owner allows.
        """
        found = {number: forward_seconds(s, batch, limits.tflops) for number, s in segments.items()}
        for number, forward in found.items():
            seconds = max(PASS_FACTORS.values()) * forward
            if seconds > limits.longest_pass_seconds:
                raise GraphError(
                    f"one microbatch would take about {seconds:.0f} s in segment {number} here, the limit is"
                    f" {limits.longest_pass_seconds:.0f} s: use smaller microbatches or more workers"
                )
        return cls(limits, found, sum(len(segment.nodes) for segment in segments.values()))

    def doing(self, kind: Kind, microbatch: int) -> Doing:
        """The activity of a microbatch's pass, with its limits."""
        segment, task, train = kind
        expected = self._learned.get(kind, PASS_FACTORS[task] * self.forward_seconds[segment])
        name = f"the {task} pass" if train else f"the {task} pass of an evaluation"
        what = f"{name} of microbatch {microbatch + 1} through segment {segment}"
        allowed = min(TIMES * expected, self.limits.longest_pass_seconds)
        return Doing(what, max(allowed, self.limits.pass_seconds), expected)

    def record(self, kind: Kind, seconds: float) -> None:
        """Record the duration of a pass."""
        if kind in self._learned:
            return
        measured = self._measured.setdefault(kind, [])
        measured.append(seconds)
        if len(measured) == LEARNED_AFTER:
            self._learned[kind] = median(self._measured.pop(kind))

    def compiling(self) -> Doing:
        """The activity of compiling all segments, if the backend compiles."""
        expected = COMPILE_SECONDS * self.nodes
        allowed = min(TIMES * expected, self.limits.longest_pass_seconds)
        return Doing("compiling the segments", max(allowed, self.limits.chore_seconds), expected)


def forward_seconds(segment: Segment, batch: int, tflops: float) -> float:
    """Estimate a forward pass from its FLOPs and the bytes that its nodes read and write."""
    values = segment.values
    operations = sum(flops(node, values, batch) for node in segment.nodes)
    moved = sum(values[v].bytes(batch) for node in segment.nodes for v in (*node.reads(), *node.writes()))
    return operations / (max(tflops, LEAST_TFLOPS) * 1e12) + moved / BYTES_PER_SECOND


class Stopwatch:
    """Holds the current activity. `doing` is replaced as a whole, so other threads never see a mixture."""

    def __init__(self) -> None:
        self.doing: Doing | None = None

    @contextmanager
    def during(self, doing: Doing) -> Iterator[None]:
        """Set `doing` as the current activity while the block runs."""
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
            passes.record(kind, time.perf_counter() - began)

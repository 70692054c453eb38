"""Where 50 RTX 3080 in homes do the work of 4 H100, and where they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from benchmarks.consumer.alike import Candidate, Found, best, candidates
from benchmarks.consumer.fleet import homes, server
from benchmarks.models import library

from farflung.planner.codecs.policies import dense, uniform
from farflung.simulator import Conditions
from farflung.workload import Live, Workload

RATES_MBPS = tuple(round(10 ** (2 + number / 2)) for number in range(7))  # 100 Mbit/s to 100 Gbit/s
LATENCIES_MS = (1.0, 20.0, 80.0)
PRECISION = 0.03
"""Of a rate from which the claim holds, relative."""


@dataclass(frozen=True)
class Task:
    """A step: the model, and how many samples its batch has."""

    model: str
    samples: int
    sizes: tuple[int, ...]

    def workloads(self) -> list[Workload]:
        """The step in microbatches of each size."""
        sizes = (size for size in self.sizes if self.samples // size > 1)
        return [mixed_precision(library.workload(self.model, self.samples // n, n)) for n in sizes]


def mixed_precision(workload: Workload) -> Workload:
    """The workload as fp16 tensor cores run it: what is kept for the backward pass takes half the bytes.

    Parameters, gradients and AdamW's moments stay fp32. So do the values between segments, because the ratio
    of a codec is that to fp32: a link that sends what the card computes has codec bf16.
    """
    live = workload.live
    return replace(
        workload,
        tape_bytes=workload.tape_bytes / 2,
        live=Live(
            live.forward / 2,
            live.returning / 2,
            live.left / 2,
            live.recomputing / 2,
            live.recomputed / 2,
            tuple(gap._replace(bytes=gap.bytes / 2) for gap in live.forward_gaps),
            tuple(gap._replace(bytes=gap.bytes / 2) for gap in live.backward_gaps),
        ),
        unkept=tuple((made, last, size // 2) for made, last, size in workload.unkept),
        repeats=tuple(replace(repeat, tape=repeat.tape / 2) for repeat in workload.repeats),
    )


RUNGS = ("bf16", "int8", "int8/int4-stochastic", "row-topk30-int4/masked30-int4")

TASKS = {
    "bert-large": Task("bert-large", 4096, (4, 8, 16)),
    "bert-large-256": Task("bert-large", 256, (1, 2, 4)),
    "gpt3-24": Task("gpt3-24", 512, (1, 2)),
}
"""BERT with 4,096 sequences of 512 words, and with its paper's 256; GPT-3 with its paper's 2^20 symbols."""


@dataclass(frozen=True)
class Assumptions:
    """What no data sheet says, the same for both fleets.

    `efficiency` is the part of its peak that a card reaches on any operator. `codec_speed` says how many
    times as fast as a CPU core a card is at writing and reading a codec: 50 is 140 GB/s for int8, about a
    fifth of the bandwidth of an RTX 3080's memory.
    """

    efficiency: float = 0.4
    codec_speed: float = 50.0

    def conditions(self) -> Conditions:
        """For the simulator."""
        return Conditions(efficiency=self.efficiency, codec_speed=self.codec_speed)


@dataclass(frozen=True)
class Point:
    """What the homes do on one kind of line with one codec: samples a second, and beside the server's."""

    model: str
    codec: str
    latency_ms: float
    mbps: float
    samples_per_second: float
    ratio: float
    replicas: int
    stages: int
    microbatch_size: int
    recompute: bool
    bottleneck: str


class Comparison:
    """Both fleets on one task."""

    def __init__(self, task: Task, assumptions: Assumptions, rates_mbps: tuple[float, ...]) -> None:
        self.task = task
        self._rates = rates_mbps
        self._assumptions = assumptions
        self._conditions = assumptions.conditions()

    @cached_property
    def server(self) -> Found:
        """The best plan of the server."""
        net = server()
        found = best(
            candidates(self.task.workloads(), [net], self._assumptions.efficiency),
            net,
            dense,
            self._conditions,
        )
        assert found is not None
        return found

    @cached_property
    def _candidates(self) -> list[Candidate]:
        nets = [homes(rate, 20.0) for rate in self._rates[::2]]
        return candidates(self.task.workloads(), nets, self._assumptions.efficiency)

    def point(self, rung: str, latency_ms: float, mbps: float) -> Point:
        """The best plan of the homes on such lines."""
        found = best(self._candidates, homes(mbps, latency_ms), uniform(rung), self._conditions)
        assert found is not None
        seconds = found.simulation.step_seconds
        return Point(
            model=self.task.model,
            codec=rung,
            latency_ms=latency_ms,
            mbps=mbps,
            samples_per_second=self.task.samples / seconds,
            ratio=self.server.simulation.step_seconds / seconds,
            replicas=found.candidate.replicas,
            stages=found.candidate.stages,
            microbatch_size=found.candidate.microbatch_size,
            recompute=found.candidate.recompute,
            bottleneck=found.simulation.line(),
        )

    def curve(self, rung: str, latency_ms: float) -> list[Point]:
        """One point for each rate."""
        return [self.point(rung, latency_ms, rate) for rate in self._rates]

    def holds_from(self, curve: list[Point], rung: str, enough: float) -> float | None:
        """The least rate from which the homes do `enough` of the server's work; None if none does."""
        high = next((at for at, point in enumerate(curve) if point.ratio >= enough), None)
        if high is None:
            return None
        if high == 0:
            return curve[0].mbps
        return _least(
            curve[high - 1].mbps,
            curve[high].mbps,
            lambda mbps: self.point(rung, curve[high].latency_ms, mbps).ratio >= enough,
        )


def _least(low: float, high: float, is_enough: Callable[[float], bool]) -> float:
    while high > low * (1 + PRECISION):
        middle = (low * high) ** 0.5
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high

"""What a choice of codecs depends on: the ways of a plan and their lines, its stages and what hops between
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from farflung.planner.codecs.ladder import CostedRung
from farflung.runtime.parcel import CodecSample
from farflung.simulator.costs import NOTHING, Codable, TaskSeconds

NOWHERE = -1


@dataclass(frozen=True)
class Way:
    """An ordered pair of workers: bytes of payload a second, if it has its lines for itself, and latency."""

    source: str
    target: str
    bytes_per_second: float
    latency_seconds: float

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True)
class Line:
    """What the ways of one worker share in one direction; `ways` by their numbers."""

    name: str
    bytes_per_second: float
    ways: tuple[int, ...]


@dataclass(frozen=True)
class Stage:
    """A segment on its worker, and what its tasks take for a microbatch."""

    worker: str
    seconds: TaskSeconds

    @property
    def whole(self) -> float:
        """All of them."""
        return self.seconds.forward + self.seconds.backward + self.seconds.accumulate

    def slower(self, factor: float) -> Stage:
        """The same where everything takes `factor` times as long."""
        took = self.seconds
        return Stage(
            self.worker,
            TaskSeconds(took.forward * factor, took.backward * factor, took.accumulate * factor),
        )


@dataclass(frozen=True)
class Hop:
    """What segment `source` sends to `target` for a microbatch, and what comes back, uncompressed.

    `forward` and `backward` are the numbers of the ways, `NOWHERE` within one worker. `floats` are what
    codecs may write, there and back; `exact_bytes` go there as they are, `returned_bytes` back.
    """

    source: int
    target: int
    forward: int
    backward: int
    floats: Codable
    exact_bytes: float
    returned_bytes: float = 0.0


class Carried(NamedTuple):
    """What a way carries for a microbatch, uncompressed; `exact` are bytes that no codec may write."""

    activations: Codable = NOTHING
    gradients: Codable = NOTHING
    exact: float = 0.0

    def plus(self, other: Carried) -> Carried:
        """Both together."""
        there, back = self.activations.plus(other.activations), self.gradients.plus(other.gradients)
        return Carried(there, back, self.exact + other.exact)

    @property
    def bytes(self) -> float:
        """As it is."""
        return self.activations.bytes + self.gradients.bytes + self.exact

    @property
    def fp32_bytes(self) -> float:
        """With floats in fp32, as the ratios that users see are meant."""
        return self.activations.fp32_bytes + self.gradients.fp32_bytes + self.exact

    def wire_bytes(self, activation_ratio: float, gradient_ratio: float) -> float:
        """What codecs of these ratios make of it."""
        return (
            self.activations.wire_bytes(activation_ratio)
            + self.gradients.wire_bytes(gradient_ratio)
            + self.exact
        )


@dataclass(frozen=True)
class Pipeline:
    """One replica, and the microbatches that it runs in a step."""

    stages: tuple[Stage, ...]
    hops: tuple[Hop, ...]
    microbatches: int


@dataclass(frozen=True)
class Machine:
    """Workers that compute on the same `cores`."""

    workers: tuple[str, ...]
    cores: int

    @property
    def name(self) -> str:
        """For people."""
        return f"the cores of {', '.join(self.workers)}"


@dataclass(frozen=True)
class LinkSample:
    """The effect of a codec on one of this job's tensors that crosses the link from `source` to `target`."""

    source: str
    target: str
    sample: CodecSample


@dataclass(frozen=True)
class Circumstances:
    """All of it.

    `codec_speed` is how many times as fast as a CPU core devices code; `sampled` what codecs did on a way: by
    its number, the codec's name and whether to gradients. `swelling` is how many times as many bytes as
    expected a rung, by its name, has written on a way.
    """

    ways: tuple[Way, ...]
    lines: tuple[Line, ...]
    pipelines: tuple[Pipeline, ...]
    machines: tuple[Machine, ...]
    window: int
    codec_speed: float = 1.0
    sampled: Mapping[tuple[int, str, bool], CodecSample] = field(default_factory=dict)
    swelling: Mapping[tuple[int, str], float] = field(default_factory=dict)

    def with_rates(self, bytes_per_second: Sequence[float]) -> Circumstances:
        """The same with other rates of all ways, in their order.

        A line carries at least what its fastest way does, and at most all of them together.
        """
        rates = tuple(bytes_per_second)
        ways = tuple(replace(way, bytes_per_second=rate) for way, rate in zip(self.ways, rates, strict=True))
        lines = []
        for line in self.lines:
            mine = [rates[way] for way in line.ways]
            carried = min(max(line.bytes_per_second, *mine), sum(mine))
            lines.append(replace(line, bytes_per_second=carried))
        return replace(self, ways=ways, lines=tuple(lines))

    def with_speeds(self, factors: Mapping[str, float]) -> Circumstances:
        """The same where workers compute so many times as long."""
        pipelines = []
        for pipeline in self.pipelines:
            stages = tuple(stage.slower(factors.get(stage.worker, 1.0)) for stage in pipeline.stages)
            pipelines.append(replace(pipeline, stages=stages))
        return replace(self, pipelines=tuple(pipelines))

    @cached_property
    def worker_seconds(self) -> dict[str, float]:
        """What a microbatch takes each worker to compute."""
        found: dict[str, float] = defaultdict(float)
        for pipeline in self.pipelines:
            for stage in pipeline.stages:
                found[stage.worker] += stage.whole
        return found

    @cached_property
    def computing(self) -> tuple[str, float]:
        """The device or machine that computes longest for a microbatch, and how long."""
        busy = self.worker_seconds
        shared = [(m.name, sum(busy[worker] for worker in m.workers) / m.cores) for m in self.machines]
        return max([*busy.items(), *shared], key=lambda one: one[1])

    @cached_property
    def numbers(self) -> dict[tuple[str, str], int]:
        """The number of each way, by its ends."""
        return {(way.source, way.target): number for number, way in enumerate(self.ways)}

    @cached_property
    def pairs(self) -> tuple[tuple[int, ...], ...]:
        """For each way, those that take a sticky rung together with it: both directions of its pair."""
        back = [self.numbers.get((way.target, way.source), number) for number, way in enumerate(self.ways)]
        return tuple(tuple(sorted({number, other})) for number, other in enumerate(back))

    @cached_property
    def carried(self) -> tuple[Carried, ...]:
        """Of each way."""
        found = [Carried()] * len(self.ways)
        for hop in (hop for pipeline in self.pipelines for hop in pipeline.hops):
            if hop.forward != NOWHERE:
                there = Carried(activations=hop.floats, exact=hop.exact_bytes)
                found[hop.forward] = found[hop.forward].plus(there)
            if hop.backward != NOWHERE:
                back = Carried(gradients=hop.floats, exact=hop.returned_bytes)
                found[hop.backward] = found[hop.backward].plus(back)
        return tuple(found)

    @cached_property
    def microbatches(self) -> tuple[int, ...]:
        """Of a step, those that cross each way."""
        found = [0] * len(self.ways)
        for pipeline in self.pipelines:
            for hop in pipeline.hops:
                for way in (hop.forward, hop.backward):
                    if way != NOWHERE:
                        found[way] = pipeline.microbatches
        return tuple(found)

    @cached_property
    def boundaries(self) -> tuple[int, ...]:
        """Of the longest pipeline that crosses each way: between how many stages its tensors are written."""
        found = [0] * len(self.ways)
        for pipeline in self.pipelines:
            for hop in pipeline.hops:
                for way in (hop.forward, hop.backward):
                    if way != NOWHERE:
                        found[way] = max(found[way], len(pipeline.stages) - 1)
        return tuple(found)

    def rate(self, way: int) -> float:
        """Bytes a second of a way that has its lines for itself."""
        return self._rates[way]

    def ratio(self, way: int, rung: CostedRung, gradient: bool) -> float:
        """Of one of the rung's codecs on a way: as it wrote there, as sampled, or else as expected."""
        swelling = self.swelling.get((way, rung.name))
        if swelling is not None:
            return rung.declared(gradient).ratio / swelling
        sampled = self.sampled.get((way, rung.codec(gradient), gradient))
        return sampled.ratio if sampled else rung.declared(gradient).ratio

    def swelling_of(self, way: int, rung: CostedRung, payload_bytes: float) -> float | None:
        """How many times as many bytes as expected the rung wrote, if a microbatch took `payload_bytes`.

        None where a codec writes nothing, or what it wrote cannot be told from the rest.
        """
        carried = self.carried[way]
        expected = carried.wire_bytes(rung.activation.ratio, rung.gradient.ratio) - carried.exact
        coded = payload_bytes - carried.exact
        return coded / expected if expected > 0 and coded > 0 else None

    def ratio_of_all(self, way: int, rung: CostedRung) -> float:
        """Of all bytes that a way carries, floats in fp32."""
        wire = self.wire_bytes(way, rung)
        return max(1.0, self.carried[way].fp32_bytes / wire) if wire else 1.0

    def wire_bytes(self, way: int, rung: CostedRung) -> float:
        """Of a microbatch on a way."""
        return self.carried[way].wire_bytes(self.ratio(way, rung, False), self.ratio(way, rung, True))

    def coding_seconds(self, way: int, rung: CostedRung) -> tuple[float, float]:
        """Writing, and reading, of what the way carries for a microbatch."""
        activations, gradients, _ = self.carried[way]
        one, other = self.coding(rung, False, activations), self.coding(rung, True, gradients)
        return one[0] + other[0], one[1] + other[1]

    def message_seconds(self, way: int, rung: CostedRung) -> float:
        """Writing, carrying and reading of all of it, with nothing else on the lines."""
        return sum(self.coding_seconds(way, rung)) + self.wire_bytes(way, rung) / self.rate(way)

    def coding(self, rung: CostedRung, gradient: bool, floats: Codable) -> tuple[float, float]:
        """Writing, and reading, by one of the rung's codecs."""
        declared = rung.declared(gradient)
        if declared.bits >= 32:
            return 0.0, 0.0
        giga = floats.fp32_bytes / 1e9 / self.codec_speed
        return giga / declared.encode_gbps, giga / declared.decode_gbps

    def loss_gap(self, rungs: Sequence[CostedRung]) -> float:
        """What these rungs, one for each way, cost in loss: every boundary its rougher direction's.

        Boundaries are added up, a replica's by its share of the microbatches.
        """
        total = sum(pipeline.microbatches for pipeline in self.pipelines)
        gap = 0.0
        for pipeline in self.pipelines:
            for hop in pipeline.hops:
                gaps = [
                    rungs[way].loss_gap * self._worse(way, rungs[way], gradient)
                    for way, gradient in ((hop.forward, False), (hop.backward, True))
                    if way != NOWHERE and hop.floats.bytes
                ]
                gap += max(gaps, default=0.0) * pipeline.microbatches / total
        return gap

    @cached_property
    def _rates(self) -> tuple[float, ...]:
        found = [way.bytes_per_second for way in self.ways]
        for line in self.lines:
            for way in line.ways:
                found[way] = min(found[way], line.bytes_per_second)
        return tuple(found)

    def _worse(self, way: int, rung: CostedRung, gradient: bool) -> float:
        """How much worse than declared a codec writes this way's tensors, as noise: between 1/4 and 4.

        A measured loss is one of other tensors. How it grows with the error was not measured; noise that is
        small and has no mean adds to the loss by its square.
        """
        sampled = self.sampled.get((way, rung.codec(gradient), gradient))
        usual = rung.declared(gradient).usual_error
        if sampled is None or not usual:
            return 1.0
        return min(4.0, max(0.25, (sampled.error / usual) ** 2))

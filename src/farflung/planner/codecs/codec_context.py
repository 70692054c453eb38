"""What a choice of codecs depends on: a plan's links, access lines, stages and messages."""

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
class Link:
    """A directed pair of workers, with its rate of payload while the access lines are otherwise idle."""

    source: str
    target: str
    bytes_per_second: float
    latency_seconds: float

    @property
    def name(self) -> str:
        """The link as messages write it."""
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True)
class Line:
    """A worker's access line in one direction; `links` are the numbers of the links that share it."""

    name: str
    bytes_per_second: float
    links: tuple[int, ...]


@dataclass(frozen=True)
class Stage:
    """A segment on its worker, with the seconds of its tasks for one microbatch."""

    worker: str
    seconds: TaskSeconds

    @property
    def whole(self) -> float:
        """Seconds of all tasks together."""
        return self.seconds.forward + self.seconds.backward + self.seconds.accumulate

    def slower(self, factor: float) -> Stage:
        """The same stage if everything takes `factor` times as long."""
        seconds = self.seconds
        return Stage(
            self.worker,
            TaskSeconds(seconds.forward * factor, seconds.backward * factor, seconds.accumulate * factor),
        )


@dataclass(frozen=True)
class Hop:
    """The values that segment `source` sends to `target` for a microbatch and their gradients, uncompressed.

    `forward` and `backward` are link numbers, or `NOWHERE` within one worker. Codecs may write `activations`
    and `gradients`; `exact_bytes` forward and `returned_bytes` backward are never compressed.
    """

    source: int
    target: int
    forward: int
    backward: int
    activations: Codable
    gradients: Codable
    exact_bytes: float
    returned_bytes: float = 0.0


class Carried(NamedTuple):
    """What a link carries for a microbatch, uncompressed; no codec may write the `exact` bytes."""

    activations: Codable = NOTHING
    gradients: Codable = NOTHING
    exact: float = 0.0

    def plus(self, other: Carried) -> Carried:
        """Both together."""
        there, back = self.activations.plus(other.activations), self.gradients.plus(other.gradients)
        return Carried(there, back, self.exact + other.exact)

    @property
    def bytes(self) -> float:
        """All bytes, uncompressed."""
        return self.activations.bytes + self.gradients.bytes + self.exact

    @property
    def fp32_bytes(self) -> float:
        """All bytes with floats in fp32, the base of the ratios that users see."""
        return self.activations.fp32_bytes + self.gradients.fp32_bytes + self.exact

    def wire_bytes(self, activation_ratio: float, gradient_ratio: float) -> float:
        """Bytes on the wire with codecs of these ratios."""
        return (
            self.activations.wire_bytes(activation_ratio)
            + self.gradients.wire_bytes(gradient_ratio)
            + self.exact
        )


@dataclass(frozen=True)
class Pipeline:
    """One replica, its number of microbatches in a step, and how many of them may be in flight."""

    stages: tuple[Stage, ...]
    hops: tuple[Hop, ...]
    microbatches: int
    window: int


@dataclass(frozen=True)
class Machine:
    """Workers that share `cores`."""

    workers: tuple[str, ...]
    cores: int

    @property
    def name(self) -> str:
        """The machine as messages write it."""
        return f"the cores of {', '.join(self.workers)}"


@dataclass(frozen=True)
class LinkSample:
    """The effect of a codec on one of this job's tensors that crosses the link from `source` to `target`."""

    source: str
    target: str
    sample: CodecSample


@dataclass(frozen=True)
class CodecContext:
    """What a choice of codecs for a plan depends on.

    `codec_speed` is the codec threads' speed relative to one CPU core. `sampled` holds samples by link
    number, codec name and whether it wrote gradients. `swelling` holds, by link number and name of the rung,
    the ratio of the bytes written to those expected.
    """

    links: tuple[Link, ...]
    lines: tuple[Line, ...]
    pipelines: tuple[Pipeline, ...]
    machines: tuple[Machine, ...]
    codec_speed: float = 1.0
    sampled: Mapping[tuple[int, str, bool], CodecSample] = field(default_factory=dict)
    swelling: Mapping[tuple[int, str], float] = field(default_factory=dict)

    def with_rates(self, bytes_per_second: Sequence[float]) -> CodecContext:
        """The same context with these rates of all links, in order.

        An access line's rate is kept between the rate of its fastest link and the sum of all its links.
        """
        rates = tuple(bytes_per_second)
        links = tuple(
            replace(link, bytes_per_second=rate) for link, rate in zip(self.links, rates, strict=True)
        )
        lines = []
        for line in self.lines:
            mine = [rates[link] for link in line.links]
            carried = min(max(line.bytes_per_second, *mine), sum(mine))
            lines.append(replace(line, bytes_per_second=carried))
        return replace(self, links=links, lines=tuple(lines))

    def with_speeds(self, factors: Mapping[str, float]) -> CodecContext:
        """The same context if workers take these factors longer to compute."""
        pipelines = []
        for pipeline in self.pipelines:
            stages = tuple(stage.slower(factors.get(stage.worker, 1.0)) for stage in pipeline.stages)
            pipelines.append(replace(pipeline, stages=stages))
        return replace(self, pipelines=tuple(pipelines))

    @cached_property
    def worker_seconds(self) -> dict[str, float]:
        """Compute seconds of each worker for one microbatch."""
        found: dict[str, float] = defaultdict(float)
        for pipeline in self.pipelines:
            for stage in pipeline.stages:
                found[stage.worker] += stage.whole
        return found

    @cached_property
    def computing(self) -> tuple[str, float]:
        """The device or machine that computes longest for a microbatch, and its seconds."""
        busy = self.worker_seconds
        shared = [(m.name, sum(busy[worker] for worker in m.workers) / m.cores) for m in self.machines]
        return max([*busy.items(), *shared], key=lambda one: one[1])

    @cached_property
    def numbers(self) -> dict[tuple[str, str], int]:
        """The number of each link, by source and target."""
        return {(link.source, link.target): number for number, link in enumerate(self.links)}

    @cached_property
    def pairs(self) -> tuple[tuple[int, ...], ...]:
        """For each link, the links that change to or from a sticky rung together: both directions."""
        back = [
            self.numbers.get((link.target, link.source), number) for number, link in enumerate(self.links)
        ]
        return tuple(tuple(sorted({number, other})) for number, other in enumerate(back))

    @cached_property
    def carried(self) -> tuple[Carried, ...]:
        """What each link carries for a microbatch."""
        found = [Carried()] * len(self.links)
        for hop in (hop for pipeline in self.pipelines for hop in pipeline.hops):
            if hop.forward != NOWHERE:
                there = Carried(activations=hop.activations, exact=hop.exact_bytes)
                found[hop.forward] = found[hop.forward].plus(there)
            if hop.backward != NOWHERE:
                back = Carried(gradients=hop.gradients, exact=hop.returned_bytes)
                found[hop.backward] = found[hop.backward].plus(back)
        return tuple(found)

    @cached_property
    def microbatches(self) -> tuple[int, ...]:
        """The number of microbatches in a step that cross each link."""
        found = [0] * len(self.links)
        for pipeline in self.pipelines:
            for hop in pipeline.hops:
                for link in (hop.forward, hop.backward):
                    if link != NOWHERE:
                        found[link] = pipeline.microbatches
        return tuple(found)

    @cached_property
    def boundaries(self) -> tuple[int, ...]:
        """For each link, the number of stage boundaries in the longest pipeline that crosses it."""
        found = [0] * len(self.links)
        for pipeline in self.pipelines:
            for hop in pipeline.hops:
                for link in (hop.forward, hop.backward):
                    if link != NOWHERE:
                        found[link] = max(found[link], len(pipeline.stages) - 1)
        return tuple(found)

    def rate(self, link: int) -> float:
        """Bytes a second of a link while its access lines are otherwise idle."""
        return self._rates[link]

    def ratio(self, link: int, rung: CostedRung, gradient: bool) -> float:
        """The ratio of one of the rung's codecs on a link: as measured, else as sampled, else as declared."""
        swelling = self.swelling.get((link, rung.name))
        if swelling is not None:
            return rung.declared(gradient).ratio / swelling
        sampled = self.sampled.get((link, rung.codec(gradient), gradient))
        return sampled.ratio if sampled else rung.declared(gradient).ratio

    def swelling_of(self, link: int, rung: CostedRung, payload_bytes: float) -> float | None:
        """The ratio of written to expected bytes, if the rung wrote `payload_bytes` for a microbatch.

        None if no codec writes anything, or if its bytes cannot be separated from the rest.
        """
        carried = self.carried[link]
        expected = carried.wire_bytes(rung.activation.ratio, rung.gradient.ratio) - carried.exact
        coded = payload_bytes - carried.exact
        return coded / expected if expected > 0 and coded > 0 else None

    def ratio_of_all(self, link: int, rung: CostedRung) -> float:
        """The ratio over all bytes that a link carries, floats counted in fp32."""
        wire = self.wire_bytes(link, rung)
        return max(1.0, self.carried[link].fp32_bytes / wire) if wire else 1.0

    def wire_bytes(self, link: int, rung: CostedRung) -> float:
        """Bytes of a microbatch on a link's wire."""
        return self.carried[link].wire_bytes(self.ratio(link, rung, False), self.ratio(link, rung, True))

    def coding_seconds(self, link: int, rung: CostedRung) -> tuple[float, float]:
        """Seconds to encode and to decode what the link carries for a microbatch."""
        activations, gradients, _ = self.carried[link]
        one, other = self.coding(rung, False, activations), self.coding(rung, True, gradients)
        return one[0] + other[0], one[1] + other[1]

    def message_seconds(self, link: int, rung: CostedRung) -> float:
        """Seconds to encode, send and decode a microbatch while the access lines are otherwise idle."""
        return sum(self.coding_seconds(link, rung)) + self.wire_bytes(link, rung) / self.rate(link)

    def coding(self, rung: CostedRung, gradient: bool, floats: Codable) -> tuple[float, float]:
        """Seconds to encode and to decode `floats` with one of the rung's codecs."""
        declared = rung.declared(gradient)
        if declared.bits >= 32:
            return 0.0, 0.0
        giga = floats.fp32_bytes / 1e9 / self.codec_speed
        return giga / declared.encode_gbps, giga / declared.decode_gbps

    def loss_gap(self, rungs: Sequence[CostedRung]) -> float:
        """The relative loss gap of these rungs, one for each link.

        Each boundary counts with its worse direction. Boundaries add up, those of a replica weighted by its
        share of the microbatches.
        """
        total = sum(pipeline.microbatches for pipeline in self.pipelines)
        gap = 0.0
        for pipeline in self.pipelines:
            for hop in pipeline.hops:
                gaps = [
                    rungs[link].loss_gap * self._worse(link, rungs[link], gradient)
                    for link, gradient, floats in (
                        (hop.forward, False, hop.activations),
                        (hop.backward, True, hop.gradients),
                    )
                    if link != NOWHERE and floats.bytes
                ]
                gap += max(gaps, default=0.0) * pipeline.microbatches / total
        return gap

    @cached_property
    def _rates(self) -> tuple[float, ...]:
        found = [link.bytes_per_second for link in self.links]
        for line in self.lines:
            for link in line.links:
                found[link] = min(found[link], line.bytes_per_second)
        return tuple(found)

    def _worse(self, link: int, rung: CostedRung, gradient: bool) -> float:
        """The noise of a codec on this link's tensors relative to the declared noise, between 1/4 and 4.

        The measured losses come from other tensors. How loss grows with the error was not measured; small
        noise with zero mean adds to the loss by its square.
        """
        sampled = self.sampled.get((link, rung.codec(gradient), gradient))
        usual = rung.declared(gradient).usual_error
        if sampled is None or not usual:
            return 1.0
        return min(4.0, max(0.25, (sampled.error / usual) ** 2))

"""Seconds and bytes of a plan's tasks, messages and links."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from farflung.codec import catalogue
from farflung.codec.base import Declared
from farflung.errors import PlanError
from farflung.plans import FEEDER, FP32_BYTES, Edge, Placement, Plan, Topology, single_pipelines
from farflung.plans.codec_pair import DENSE, CodecPair
from farflung.schedule import TaskKind
from farflung.simulator.conditions import Conditions
from farflung.workload.workload import BACKWARD_FACTOR, WEIGHT_FACTOR


class Codable(NamedTuple):
    """Bytes of floats that codecs may write: in their own dtype, and in fp32, on which ratios are based."""

    bytes: float = 0
    fp32_bytes: float = 0

    @staticmethod
    def of(edge: Edge) -> Codable:
        """The floats that codecs may write of a value; its gradient, if it has one, is of the same size."""
        if not edge.is_codable:
            return NOTHING
        return Codable(edge.bytes, edge.bytes * FP32_BYTES / edge.element_bytes)

    def plus(self, other: Codable) -> Codable:
        """Both together."""
        return Codable(self.bytes + other.bytes, self.fp32_bytes + other.fp32_bytes)

    def wire_bytes(self, ratio: float) -> float:
        """Bytes on the wire with a codec of that ratio; values that would grow are sent dense."""
        return min(self.bytes, self.fp32_bytes / ratio)


NOTHING = Codable()


class SumPart(NamedTuple):
    """What one replica sends another's worker for sums of a segment: bytes, and seconds of their codec."""

    target: int
    bytes: float
    coding_seconds: float


class LinkCosts:
    """Rates of payload in bytes a second and latencies in seconds, by the numbers of workers.

    The feeder (-1) and the broker are in the home of worker number `home`.
    """

    def __init__(self, plan: Plan, topology: Topology, conditions: Conditions) -> None:
        self._topology = topology
        self._bytes_of_a_mbit = 1e6 / 8 * conditions.payload_share
        ids = topology.ids
        self.home = ids.index(topology.home.id)
        self._ratios: dict[tuple[int, int], float] = {}
        self._codecs: dict[tuple[int, int, bool], Declared] = {}
        self._codec_speed = conditions.codec_speed
        self._sum_codec = None if plan.sum_codec == DENSE else catalogue.declared(plan.sum_codec)
        if plan.codecs:
            numbers = {id: number for number, id in enumerate(ids)}
            for codec in plan.codecs:
                pair = numbers.get(codec.source, -1), numbers.get(codec.target, -1)
                self._ratios[pair] = codec.ratio
                for gradient, name in enumerate(CodecPair.of(codec.codec)):
                    if name != DENSE:  # dense values need no codec
                        self._codecs[*pair, bool(gradient)] = catalogue.declared(name)

    def rate(self, source: int, target: int) -> float:
        """The rate of a link itself; raises PlanError if there is no such link."""
        place = self._place(source)
        mbps = self._topology.bandwidth_mbps[place][target]
        if not mbps:
            ids = self._topology.ids
            raise PlanError(
                f"the plan needs the link {ids[place]} -> {ids[target]}, but the topology has none (0 Mbit/s)"
            )
        return mbps * self._bytes_of_a_mbit

    def up(self, worker: int) -> float | None:
        """The rate of a worker's access line out; None if its links share none."""
        mbps = self._topology.workers[self._place(worker)].up_mbps
        return None if mbps is None else mbps * self._bytes_of_a_mbit

    def down(self, worker: int) -> float | None:
        """The rate of a worker's access line in; None if its links share none."""
        mbps = self._topology.workers[worker].down_mbps
        return None if mbps is None else mbps * self._bytes_of_a_mbit

    def most(self, source: int, target: int) -> float:
        """The rate of a link with the access lines at its ends, if nothing else uses them."""
        rates = (self.rate(source, target), self.up(source), self.down(target))
        return min(rate for rate in rates if rate is not None)

    def seconds_away(self, source: int, target: int) -> float:
        """Latency between two workers."""
        source, target = self._place(source), self._place(target)
        return 0.0 if source == target else self._topology.latency_ms[source][target] / 1e3

    def is_near(self, source: int, target: int) -> bool:
        """Whether no link lies between them: one worker, or the feeder and the worker of its home."""
        return source == target or (source == FEEDER and target == self.home)

    def wire_bytes(self, source: int, target: int, size: float, floats: Codable) -> float:
        """Bytes on the wire of a message with `size` bytes in memory, of which codecs may write `floats`."""
        ratio = self._ratios.get((source, target))
        return size if ratio is None else (size - floats.bytes + floats.fp32_bytes) / ratio

    def codec_seconds(self, source: int, target: int, floats: Codable, gradient: bool) -> tuple[float, float]:
        """Seconds that the link's codec needs to encode activations or gradients, and to decode them."""
        codec = self._codecs.get((source, target, gradient))
        if codec is None:
            return 0.0, 0.0
        giga = floats.fp32_bytes / 1e9 / self._codec_speed
        return giga / codec.encode_gbps, giga / codec.decode_gbps

    def sum_messages(self, workers: Sequence[int], gradient_bytes: float) -> list[list[SumPart]]:
        """What each pipeline's worker of a piece sends for sums of its gradients, in order.

        Workers of one site are a group (`plans.unfolding`): each heads an equal part of the values, and each
        group owns an equal part. Gradients go to heads, what these find to the owners, and both come back.
        """
        sites = [self._topology.workers[number].site or f"\0{number}" for number in workers]
        size_of = Counter(sites)
        found = []
        for at in range(len(workers)):
            near, far = list[SumPart](), list[SumPart]()
            for other in (*range(at + 1, len(workers)), *range(at)):
                if sites[other] == sites[at]:
                    near.append(SumPart(workers[other], gradient_bytes / size_of[sites[at]], 0.0))
                else:
                    heads = size_of[sites[at]] * size_of[sites[other]]
                    far.append(self._coded_part(workers[other], gradient_bytes / len(size_of) / heads))
            found.append([*near, *far, *far, *near])
        return found

    def _coded_part(self, target: int, size: float) -> SumPart:
        codec = self._sum_codec
        if codec is None:
            return SumPart(target, size, 0.0)
        giga = size / 1e9 / self._codec_speed
        encoding = giga / codec.encode_gbps + giga / codec.decode_gbps  # feedback reads what it wrote
        return SumPart(target, min(size, size / codec.ratio), encoding + giga / codec.decode_gbps)

    def _place(self, number: int) -> int:
        return self.home if number == FEEDER else number


@dataclass(frozen=True, slots=True)
class Transfer:
    """All values that one segment or the feeder sends to another for one microbatch, and their gradients.

    `activations` and `gradients` are those that a codec may write. They differ where layers below are frozen.
    """

    source: int
    target: int
    forward_bytes: int
    backward_bytes: int
    activations: Codable = NOTHING
    gradients: Codable = NOTHING


@dataclass(frozen=True, slots=True)
class TaskSeconds:
    """Seconds of the tasks of one segment on one device."""

    forward: float
    backward: float
    accumulate: float

    def of(self, kind: TaskKind) -> float:
        """Seconds of a task of this kind."""
        if kind is TaskKind.FORWARD:
            return self.forward
        return self.backward if kind is TaskKind.BACKWARD else self.accumulate


def transfers_of(edges: Sequence[Edge]) -> list[Transfer]:
    """One transfer for each pair of segments with edges between them, in the order of their first edges."""
    transfers: dict[tuple[int, int], Transfer] = {}
    for edge in edges:
        pair = edge.source, edge.target
        so_far = transfers.get(pair, Transfer(*pair, 0, 0))
        transfers[pair] = Transfer(
            *pair,
            so_far.forward_bytes + edge.bytes,
            so_far.backward_bytes + (edge.bytes if edge.differentiable else 0),
            so_far.activations.plus(Codable.of(edge)),
            so_far.gradients.plus(Codable.of(edge) if edge.differentiable else NOTHING),
        )
    return list(transfers.values())


def task_seconds(
    placement: Placement, sends_back: bool, tflops: float, conditions: Conditions
) -> TaskSeconds:
    """Seconds of a segment's tasks on a device of `tflops`.

    With `sends_back` the segment sends gradients upstream. Otherwise it only has gradients of parameters,
    for which no other worker waits.
    """
    forward = placement.flops / (tflops * 1e12 * conditions.efficiency)
    whole = forward * (BACKWARD_FACTOR + placement.recompute)
    if not conditions.split_backward:
        return TaskSeconds(forward, whole, 0.0)
    accumulate = forward * WEIGHT_FACTOR if sends_back else whole
    return TaskSeconds(forward, whole - accumulate, accumulate)


@dataclass(frozen=True, slots=True)
class PipelineCosts:
    """What one pipeline of a plan computes and sends.

    Its segments have numbers from 0 on. `workers` holds the number of each one's worker in the topology,
    `seconds` the times of its tasks. It runs `microbatches` of a step, at most `window` of them at a time.
    """

    placements: Sequence[Placement]
    workers: Sequence[int]
    microbatches: int
    transfers: Sequence[Transfer]
    seconds: Sequence[TaskSeconds]
    window: int

    @property
    def recomputing(self) -> set[int]:
        """Numbers of the segments that recompute activations."""
        return {placed.segment for placed in self.placements if placed.recompute}

    @property
    def owned_bytes(self) -> Counter[int]:
        """Bytes of parameters on each worker."""
        found = Counter[int]()
        for placed, worker in zip(self.placements, self.workers, strict=True):
            found[worker] += placed.parameter_bytes
        return found


class Piece(NamedTuple):
    """Parameters that one segment of each pipeline holds, and the bytes of their gradients.

    `holders` are the numbers of the segments, each in its pipeline.
    Where all pipelines have the same cuts, each segment is a piece; else pieces lie between all cuts.
    """

    holders: tuple[int, ...]
    gradient_bytes: float


def pipelines_of(plan: Plan, topology: Topology, conditions: Conditions) -> list[PipelineCosts]:
    """The pipelines of a plan, folded or not, without those that were dropped.

    Raises
    ------
    PlanError
        The topology lacks a worker of the plan, or a worker runs segments of two pipelines.
    """
    parts = single_pipelines(plan)
    transfers = {id(part.edges): transfers_of(part.edges) for part in parts}  # folded ones share their edges
    return [
        PipelineCosts(
            part.placements,
            workers,
            share,
            transfers[id(part.edges)],
            segment_seconds(part, topology, conditions, workers),
            conditions.window or part.window,
        )
        for part, workers, share in zip(parts, _numbers_of(parts, topology), plan.live_shares, strict=True)
    ]


def pieces_of(plan: Plan) -> list[Piece]:
    """The pieces whose gradients the pipelines of a plan add up; none if there is one pipeline."""
    if plan.pipeline_count == 1:
        return []
    if not plan.pipelines:
        return [Piece((placed.segment,) * plan.replicas, placed.gradient_bytes) for placed in plan.placements]
    firsts = [0, *accumulate(one.segments for one in plan.pipelines)]
    sizes = Counter[tuple[int, ...]]()
    for one in plan.sums:
        sizes[tuple(sorted(one.holders()))] += one.bytes
    return [
        Piece(tuple(segment - firsts[plan.pipeline_of(segment)] for segment in holders), size)
        for holders, size in sorted(sizes.items())
    ]


def segment_seconds(
    plan: Plan, topology: Topology, conditions: Conditions, workers: Sequence[int]
) -> list[TaskSeconds]:
    """`task_seconds` of each segment of a pipeline on its worker."""
    send_back = {edge.target for edge in plan.edges if edge.differentiable}
    return [
        task_seconds(placement, placement.segment in send_back, topology.workers[worker].tflops, conditions)
        for placement, worker in zip(plan.placements, workers, strict=True)
    ]


def _numbers_of(parts: Sequence[Plan], topology: Topology) -> list[list[int]]:
    """For each pipeline, the number in the topology of each segment's worker."""
    numbers = {id: number for number, id in enumerate(topology.ids)}
    at: dict[str, int] = {}
    for number, part in enumerate(parts):
        for id in (placed.worker for placed in part.placements):
            if id not in numbers:
                raise PlanError(f"the plan uses worker {id!r}, which the topology does not have")
            if at.setdefault(id, number) != number:
                raise PlanError(f"worker {id!r} runs segments of two replicas: each needs workers of its own")
    return [[numbers[placed.worker] for placed in part.placements] for part in parts]


def throughput_seconds(pipelines: Sequence[PipelineCosts], costs: LinkCosts) -> float:
    """The least step time in which every access line can carry the messages and inputs of a step."""
    busy: dict[tuple[str, int], float] = defaultdict(float)
    for pipeline in pipelines:
        workers, share = pipeline.workers, pipeline.microbatches
        for transfer in pipeline.transfers:
            b = workers[transfer.target]
            a = FEEDER if transfer.source == FEEDER else workers[transfer.source]
            if costs.is_near(a, b):
                continue
            start = costs.home if a == FEEDER else a
            there = costs.wire_bytes(a, b, transfer.forward_bytes, transfer.activations)
            _carry(busy, costs, start, b, share * there)
            if a != FEEDER:
                back = costs.wire_bytes(b, a, transfer.backward_bytes, transfer.gradients)
                _carry(busy, costs, b, start, share * back)
    return max(busy.values(), default=0.0)


def _carry(busy: dict[tuple[str, int], float], costs: LinkCosts, a: int, b: int, size: float) -> None:
    if a == costs.home:
        busy["path", b] += size / costs.rate(a, b)
    if (rate := costs.up(a)) is not None:
        busy["up", a] += size / rate
    if (rate := costs.down(b)) is not None:
        busy["down", b] += size / rate

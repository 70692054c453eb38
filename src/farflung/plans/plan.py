"""The plan: segments to workers, the edges between them, microbatches and admission window."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.plans.codec_pair import DENSE, CodecName, CodecPairName
from farflung.plans.pipelines import Pipeline, Sum, dealt
from farflung.text import count_of, printable

FP32_BYTES = 4
FEEDER = -1  # the feeder's segment number: a pseudo-segment that produces every model input

Number = Annotated[int, Meta(ge=0, le=2**53)]
SegmentNumber = Annotated[int, Meta(ge=-1, le=100_000)]
Name = Annotated[str, Meta(max_length=128)]


class Edge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One value that travels from a segment (or the feeder) to one consumer segment, once a microbatch.

    `bytes` is its size for one microbatch, `element_bytes` the size of one element. `differentiable` says
    whether its gradient travels back. If not, an empty gradient message still tells the producer that the
    microbatch is finished there. `frozen` says that it is a frozen activation: it has no gradient, but codecs
    may write it (`opdag.frozen`).
    """

    value: Number
    source: SegmentNumber
    target: SegmentNumber
    bytes: Number
    differentiable: bool
    element_bytes: Annotated[int, Meta(ge=1, le=16)] = FP32_BYTES
    frozen: bool = False

    @property
    def is_codable(self) -> bool:
        """Whether a codec may write it, and its gradient if it has one: floats of at most 4 bytes."""
        return (self.differentiable or self.frozen) and self.element_bytes <= FP32_BYTES


class Placement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one segment runs, and what it costs.

    `workers` holds one id for each replica. `flops` counts the forward pass of one microbatch,
    `parameter_bytes` the parameters that the segment owns. With `recompute` a segment stores only the values
    it received and runs forward again before its backward pass. `trained_bytes` are those of the parameters
    that are trained, whose gradients replicas add up; None if all are.
    """

    segment: SegmentNumber
    workers: list[Name]
    flops: Number
    parameter_bytes: Number
    nodes: Number
    recompute: bool = False
    trained_bytes: Number | None = None

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of a step."""
        return self.parameter_bytes if self.trained_bytes is None else self.trained_bytes

    @property
    def worker(self) -> str:
        """The one worker of a segment without replicas."""
        return self.workers[0]


class LinkCodec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The codec pair of the link from one worker to another, and its ratio.

    Activations use the pair's first codec, gradients its second (`plans.codec_pair`). `ratio` is the declared
    ratio of the tensors' bytes in fp32 to the bytes on the wire. A link without an entry is dense.
    """

    source: Name
    target: Name
    codec: CodecPairName
    ratio: Annotated[float, Meta(ge=1, le=1e7)]


class LaterCodecs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The codec pairs of all links that are not dense from the time on when `step` steps are applied."""

    step: Annotated[int, Meta(ge=1, le=10**9)]
    codecs: list[LinkCodec]


class CodecFindings(msgspec.Struct, frozen=True):
    """What the guard of codec tuning has found, which later attempts and a restarted broker go on from.

    `most_noise` is the largest relative error that codecs may declare; None if no stall was found. `relaxed`
    names the roughest codec pair of each link that the guard has relaxed. `probes` says that links write
    finely for a probe.
    """

    most_noise: float | None = None
    relaxed: list[LinkCodec] = []
    probes: bool = False


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Segments in topological order with their workers, and every edge between them.

    `window` is W of the admission rule: a source segment admits microbatch m while
    m - (oldest unfinished) < W, so no worker ever holds more than W microbatches of a segment. Pipelines with
    cuts of their own may each have a narrower one (`window_of`).

    If segments have replicas, all have the same number: replica r of one segment feeds replica r of the next
    and runs `shares[r]` of a step's microbatches. Without replicas `shares` is empty. `codecs` holds at most
    one entry for each ordered pair of workers and applies when the job begins; the entries of `later` replace
    it at their steps.

    Planners write replicas so, which folds pipelines that are alike. Before such a plan runs it is unfolded
    (`plans.unfolding`): each of the `pipelines` has segments with numbers and workers of its own, and `sums`
    add up their gradients. Pipelines with cuts of their own are never folded. A plan of one pipeline has
    neither. What sums send from site to site is written
    by `sum_codec`. If pipelines were dropped (`plans.seating`), sums are among those that are left. If
    replicas train apart, they add up once in `inner_steps` steps, which only predictions take from here.

    The segments of `home` read data that is to stay with home workers (`wishes.KeepHome`).
    """

    placements: list[Placement]
    edges: list[Edge]
    microbatches: Annotated[int, Meta(ge=1, le=1_000_000)]
    window: Annotated[int, Meta(ge=1, le=1_000_000)]
    shares: list[Number] = []
    codecs: list[LinkCodec] = []
    later: Annotated[list[LaterCodecs], Meta(max_length=1_000)] = []
    pipelines: Annotated[list[Pipeline], Meta(max_length=1_000)] = []
    sums: Annotated[list[Sum], Meta(max_length=100_000)] = []
    sum_codec: CodecName = DENSE
    inner_steps: Annotated[int, Meta(ge=1, le=10**9)] = 1
    home: Annotated[list[Number], Meta(max_length=100_000)] = []

    def __post_init__(self) -> None:
        count = len(self.placements)
        if not count:
            raise ValueError("a plan must have a segment")
        if [placement.segment for placement in self.placements] != list(range(count)):
            raise ValueError("a plan's segments must be numbered from 0 in order")
        if any(segment >= count for segment in self.home):
            raise ValueError("only a plan's own segments can be bound to home workers")
        self._check_replicas()
        self._check_pipelines()
        for edge in self.edges:
            if not (0 <= edge.target < count and FEEDER <= edge.source < count):
                raise ValueError(
                    f"an edge goes from segment {edge.source} to {edge.target}: there is no such segment"
                )
            if edge.source >= edge.target:
                raise ValueError(
                    f"an edge goes from segment {edge.source} back to {edge.target}: "
                    "a plan's segments must be in topological order"
                )

    @property
    def replicas(self) -> int:
        """How many copies of every segment there are."""
        return len(self.shares) or 1

    @property
    def pipeline_count(self) -> int:
        """How many pipelines train the model, whether they are folded or not."""
        return len(self.live_shares)

    @property
    def live_shares(self) -> list[int]:
        """The microbatches of each pipeline that was not dropped, folded or not."""
        live = [one.microbatches for one in self.pipelines if one.microbatches]
        return self.shares or live or [self.microbatches]

    @property
    def has_equal_cuts(self) -> bool:
        """Whether all pipelines have the same segments: then others hold exactly the state of each."""
        if len({one.segments for one in self.pipelines}) > 1:
            return False
        count = self.pipelines[0].segments if self.pipelines else len(self.placements)
        cuts = {
            tuple(
                (p.nodes, p.parameter_bytes, p.flops, p.recompute)
                for p in self.placements[first : first + count]
            )
            for first in range(0, len(self.placements), count)
        }
        sums = (len({segment % count for segment in one.holders()}) == 1 for one in self.sums)
        return len(cuts) == 1 and all(sums)  # frozen parameters are in no sum

    def _check_workers(self) -> None:
        live = {*self.live_segments()}
        if any((placed.segment in live) != bool(placed.workers) for placed in self.placements):
            raise ValueError(
                "every segment of a plan must have a worker, and those of dropped pipelines none"
            )

    def _check_replicas(self) -> None:
        if any(len(placed.workers) not in (0, self.replicas) for placed in self.placements):
            raise ValueError("every segment of a plan must have one worker for each replica")
        if self.shares and sum(self.shares) != self.microbatches:
            raise ValueError("the shares of a plan's replicas must add up to its microbatches")
        for codecs in (self.codecs, *(later.codecs for later in self.later)):
            if len({(codec.source, codec.target) for codec in codecs}) != len(codecs):
                raise ValueError("a plan may name only one codec for a link")
        steps = [later.step for later in self.later]
        if steps != sorted(set(steps)):
            raise ValueError("the later codecs of a plan must be in the order of their steps")

    def _check_pipelines(self) -> None:
        if not self.pipelines:
            if self.sums:
                raise ValueError("a plan of one pipeline has nothing to sum")
            self._check_workers()
            return
        if self.shares or sum(one.segments for one in self.pipelines) != len(self.placements):
            raise ValueError("the pipelines of an unfolded plan must have all of its segments")
        if sum(one.microbatches for one in self.pipelines) != self.microbatches:
            raise ValueError("the pipelines of a plan must run all of its microbatches")
        if any(one.window > self.window for one in self.pipelines):
            raise ValueError("the window of a plan must be the widest of its pipelines")
        self._check_workers()
        places = {segment: self.pipeline_of(segment) for segment in self.live_segments()}
        at: dict[str, int] = {}
        for segment, worker in self.seats().items():
            if at.setdefault(worker, places[segment]) != places[segment]:
                raise ValueError("a worker must not be in two pipelines of a plan")
        if any(edge.target not in places for edge in self.edges):
            raise ValueError("no edge of a plan must lead to a dropped pipeline")
        if any(e.source != FEEDER and places.get(e.source) != places.get(e.target) for e in self.edges):
            raise ValueError("an edge must not lead from one pipeline of a plan to another")
        for one in self.sums:
            held = [places.get(segment, -1) for segment in one.holders()]
            if sorted(held) != self.live_pipelines():
                raise ValueError("each pipeline of a plan must have one segment in each of its sums")

    def live_pipelines(self) -> list[int]:
        """The numbers of the pipelines that were not dropped, ascending."""
        if not self.pipelines:
            return [0]
        return [number for number, one in enumerate(self.pipelines) if one.microbatches]

    @property
    def home_pipeline(self) -> int:
        """The pipeline that gives its state to the submitter; after a merge all have the same parameters."""
        return self.live_pipelines()[0]

    def live_segments(self) -> list[int]:
        """The numbers of the segments that run: all but those of dropped pipelines."""
        live = set(self.live_pipelines())
        return [placed.segment for placed in self.placements if self.pipeline_of(placed.segment) in live]

    def seats(self) -> dict[int, str]:
        """The worker of each segment that runs, in a plan without folded replicas."""
        return {placed.segment: placed.worker for placed in self.placements if placed.workers}

    def pipeline_of(self, segment: int) -> int:
        """The number of the pipeline that has the segment; 0 in a plan of one."""
        return bisect_right([*accumulate(one.segments for one in self.pipelines)], segment)

    def window_of(self, segment: int) -> int:
        """W of the admission rule for a segment: that of its pipeline."""
        own = self.pipelines[self.pipeline_of(segment)].window if self.pipelines else 0
        return own or self.window

    def window_at(self, worker: str) -> int:
        """W of the admission rule for a worker's segments, which are of one pipeline; the widest if none."""
        segments = self.segments_of(worker)
        return self.window_of(segments[0]) if segments else self.window

    def microbatches_of(self, segment: int, microbatches: int, alone: bool = False) -> Sequence[int]:
        """Which of a unit's `microbatches` the segment runs, ascending; the first pipeline all if `alone`.

        If the first one was dropped, that is the next that is left.
        """
        if not self.pipelines:
            return range(microbatches)
        if alone:
            return range(microbatches) if self.pipeline_of(segment) == self.home_pipeline else ()
        shares = tuple(one.microbatches for one in self.pipelines)
        return dealt(microbatches, shares)[self.pipeline_of(segment)]

    def share_of(self, pipeline: int) -> float:
        """How much of each step's microbatches the pipeline runs, of 1."""
        return self.pipelines[pipeline].microbatches / self.microbatches if self.pipelines else 1.0

    def summed(self) -> set[tuple[int, int]]:
        """Each segment and parameter, by value id, whose gradient is one of a sum."""
        return {(segment, one.value) for one in self.sums for segment in one.holders()}

    @property
    def has_coded_sums(self) -> bool:
        """Whether a codec writes what sums send from site to site."""
        return self.sum_codec != DENSE

    def sum_bytes(self, segments: Collection[int]) -> int:
        """The most that arrives for sums at these segments in a step, which their worker keeps till then."""
        return sum(
            one.bytes * one.messages_to(segment)
            for one in self.sums
            for segment in one.holders()
            if segment in segments
        )

    def codecs_from(self, step: int) -> list[LinkCodec] | None:
        """The codec pairs that begin at exactly this step; None if the plan changes none there."""
        return next((later.codecs for later in self.later if later.step == step), None)

    def codecs_at(self, step: int) -> list[LinkCodec]:
        """The codec pairs of the links at `step`."""
        return next((later.codecs for later in reversed(self.later) if later.step <= step), self.codecs)

    def worker_of(self, segment: int) -> str:
        """The worker that runs `segment`."""
        return self.placements[segment].worker

    def segments_of(self, worker: str) -> list[int]:
        """Numbers of the segments that `worker` runs, ascending."""
        return [p.segment for p in self.placements if worker in p.workers]

    def at_home(self) -> set[str]:
        """The workers of segments that are bound to home workers."""
        return {worker for segment in self.home for worker in self.placements[segment].workers}

    def leaves_home(self) -> bool:
        """Whether activations or gradients go from a home worker to one that is not at home."""
        seats, home = self.seats(), self.at_home()
        ends = [(seats[edge.source], seats[edge.target]) for edge in self.edges if edge.source != FEEDER]
        return any((source in home) != (target in home) for source, target in ends)

    def strangers(self, home: Collection[str]) -> set[str]:
        """The workers of such segments that are not of `home`."""
        return self.at_home() - set(home)

    def recomputing(self) -> set[int]:
        """Numbers of the segments that recompute activations instead of storing them."""
        return {p.segment for p in self.placements if p.recompute}

    def __str__(self) -> str:
        """One line: each segment's worker, with its share of a replica's FLOPs, and the microbatches."""
        placed = [p for p in self.placements if p.workers]
        total = sum(p.flops for p in placed) / len(self.live_pipelines()) or 1
        replicas: dict[int, list[str]] = {}
        for p in placed:
            words = f"{p.segment} on {' and '.join(p.workers)} ({p.flops / total:.0%})"
            replicas.setdefault(self.pipeline_of(p.segment), []).append(words)
        parts = [f"segment {', '.join(found)}" for found in replicas.values()]
        if self.pipelines:
            parts = [f"replica {number}: {words}" for number, words in enumerate(parts, 1)]
        return printable("; ".join([*parts, count_of(self.microbatches, "microbatch", "microbatches")]))

    def workers(self) -> list[str]:
        """Every worker of the plan, in order of its first segment."""
        return list(dict.fromkeys(worker for p in self.placements for worker in p.workers))

    def neighbours(self, worker: str) -> set[str]:
        """Workers that exchange values or gradients with `worker` (never itself, never the feeder)."""
        pairs = [
            pair
            for edge in self.edges
            if edge.source != FEEDER
            for pair in zip(
                self.placements[edge.source].workers, self.placements[edge.target].workers, strict=True
            )
        ]
        for one in self.sums:
            pairs += [(self.worker_of(s), self.worker_of(one.head_of(s))) for s in one.holders()]
        return {b if a == worker else a for a, b in pairs if worker in (a, b)} - {worker}

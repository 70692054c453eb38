"""The plan: segments to workers, the edges between them, microbatches and admission window."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

FEEDER = -1  # the feeder's segment number: a pseudo-segment that produces every model input

Number = Annotated[int, Meta(ge=0, le=2**53)]
SegmentNumber = Annotated[int, Meta(ge=-1, le=100_000)]
Name = Annotated[str, Meta(max_length=128)]


class Edge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One value that travels from a segment (or the feeder) to one consumer segment, once a microbatch.

    `bytes` is its size for one microbatch. `differentiable` says whether its gradient travels back; where
    it does not, an empty gradient message still tells the producer that the microbatch is finished there.
    """

    value: Number
    source: SegmentNumber
    target: SegmentNumber
    bytes: Number
    differentiable: bool


class Placement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one segment runs, and what it costs.

    `workers` holds one id (more once segments have replicas). `flops` is the forward pass of one microbatch,
    `parameter_bytes` what the segment owns.
    """

    segment: SegmentNumber
    workers: list[Name]
    flops: Number
    parameter_bytes: Number
    nodes: Number

    @property
    def worker(self) -> str:
        """The one worker of a segment without replicas."""
        return self.workers[0]


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Segments in topological order with their workers, and every edge between them.

    `window` is W of the admission rule: a source segment admits microbatch m while
    m - (oldest unfinished) < W, so no worker ever holds more than W microbatches of a segment.
    """

    placements: list[Placement]
    edges: list[Edge]
    microbatches: Annotated[int, Meta(ge=1, le=1_000_000)]
    window: Annotated[int, Meta(ge=1, le=1_000_000)]

    def __post_init__(self) -> None:
        count = len(self.placements)
        if [placement.segment for placement in self.placements] != list(range(count)):
            raise ValueError("a plan's segments must be numbered from 0 in order")
        if not all(placement.workers for placement in self.placements):
            raise ValueError("every segment of a plan must have a worker")
        for edge in self.edges:
            if not (0 <= edge.target < count and FEEDER <= edge.source < count):
                raise ValueError(f"an edge goes from segment {edge.source} to {edge.target}: there is none")

    def worker_of(self, segment: int) -> str:
        """The worker that runs `segment`."""
        return self.placements[segment].worker

    def segments_of(self, worker: str) -> list[int]:
        """Numbers of the segments that `worker` runs, ascending."""
        return [p.segment for p in self.placements if p.worker == worker]

    def workers(self) -> list[str]:
        """Every worker of the plan, in order of its first segment."""
        return list(dict.fromkeys(p.worker for p in self.placements))

    def neighbours(self, worker: str) -> set[str]:
        """Workers that exchange values with `worker` (never itself, never the feeder)."""
        pairs = [
            (self.worker_of(edge.source), self.worker_of(edge.target))
            for edge in self.edges
            if edge.source != FEEDER
        ]
        return {b if a == worker else a for a, b in pairs if worker in (a, b)} - {worker}

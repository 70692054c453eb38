"""What viewers may ask of the planner about a job that runs, and what it answers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.broker.planning.messages import Question
from farflung.plans.topology import LEAST_MBPS, MOST_MBPS
from farflung.protocol.fields import Id
from farflung.protocol.timeline import RowSpan

MOST_TWINS = 8
MOST_TWINS_IN_ALL = 16
MOST_TOPOLOGY = 2**20
"""Characters of a topology that a viewer brings."""

Mbps = Annotated[float, Meta(ge=LEAST_MBPS, le=MOST_MBPS)]


class WorkerChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is different about one worker: whether the job may use it, its line, its speed, and its likes.

    `up_mbps` and `down_mbps` are what its links to other sites carry at most (to all others if all are at one
    site); None leaves them. Its device is `speed` times as fast. So many `twins` like it join at its site.
    """

    used: bool = True
    up_mbps: Mbps | None = None
    down_mbps: Mbps | None = None
    speed: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    twins: Annotated[int, Meta(ge=0, le=MOST_TWINS)] = 0


class WhatIf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plan a job again with these changes.

    Workers that are not among `workers` are used as now: members of the job are, others are not. A step has
    as many samples as now, in so many `microbatches`. `codec` is for all links, as `--codec` names it, or
    "auto". A `topology`, as a topology file has it, stands for the fleet. None leaves things as they are.
    """

    job: Id
    workers: Annotated[dict[Id, WorkerChange], Meta(max_length=2048)] = msgspec.field(default_factory=dict)
    microbatches: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    codec: Annotated[str, Meta(max_length=200)] | None = None
    topology: Annotated[str, Meta(max_length=MOST_TOPOLOGY)] | None = None


class WhatIfQuestion(msgspec.Struct, frozen=True):
    """For the process: the job as it is now, whose plan `question.current` runs, and the changes.

    `members` of the question's workers are in that plan.
    """

    question: Question
    asked: WhatIf
    members: list[str]


class PlannedSegment(msgspec.Struct, frozen=True):
    """One segment of a plan, in words of the model's size: its share of the model's FLOPs."""

    segment: int
    workers: list[str]
    share: float


class SimulatedStep(msgspec.Struct, frozen=True):
    """A plan's simulated step, in seconds, and what happens when in it; codecs are those of coded links."""

    step_seconds: float
    bottleneck: str
    segments: list[PlannedSegment]
    codecs: list[str]
    microbatches: int
    spans: list[RowSpan]


class FleetWorker(msgspec.Struct, frozen=True):
    """A worker that the job may use, as the topology has it; rates are those of its line, None if unknown."""

    worker: str
    site: str
    used: bool
    tflops: float
    up_mbps: float | None
    down_mbps: float | None


class Foreseen(msgspec.Struct, frozen=True, tag=True):
    """The step as the simulator has it now, and as it would be; `refusal` says why there is no such plan."""

    workers: list[FleetWorker]
    now: SimulatedStep | None
    then: SimulatedStep | None
    refusal: str = ""
    notes: list[str] = []

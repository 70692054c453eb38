"""What the broker has decided, and what it has merely been told.

A `Decision` is appended to the store before anything that follows from it leaves the broker, so a broker that
was killed knows what it promised. An `Observation` changes the state in the same way and is never logged:
whoever reported it is still there to report it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from farflung.errors import FarflungError
from farflung.plans import NO_WISHES, LinkCodec, Plan, Wishes
from farflung.protocol.messages import UnitReady
from farflung.protocol.submitter import CodecChange
from farflung.protocol.worker import Device, HomeLine
from farflung.runtime.training import Training

if TYPE_CHECKING:
    from farflung.broker.codecs.tuning_state import TuningState


class Decision(msgspec.Struct, frozen=True, tag=True):
    """A fact that is logged. `at` is in seconds since 1970, by the broker's clock."""

    at: float


class WorkerAdmitted(Decision, frozen=True):
    """The worker is connected and stands in the backup pool."""

    worker: str
    device: Device
    site: str
    addresses: list[str]
    boot: str
    relay_mbps: float = 0.0
    line: HomeLine = HomeLine()
    claims: list[str] = []
    seen: str = ""


class WorkerMoved(Decision, frozen=True):
    """The worker is to be found at other addresses."""

    worker: str
    addresses: list[str]
    claims: list[str] = []
    seen: str = ""


class WorkerLost(Decision, frozen=True):
    """The worker's control link is gone; it stays known under its id."""

    worker: str
    reason: str


class JobSubmitted(Decision, frozen=True):
    """A job stands at the end of the queue. `workers` = 0 takes every idle worker; `on` may name them."""

    job: str
    name: str
    submitter: str
    graph: bytes
    training: Training
    workers: int
    on: list[str] = []
    wishes: Wishes = NO_WISHES
    seen: str = ""


class JobPlanning(Decision, frozen=True):
    """The job holds these workers, and attempt `attempt` has begun."""

    job: str
    attempt: int
    workers: list[str]


class JobRequeued(Decision, frozen=True):
    """The attempt was over before any worker heard of it: the job waits again, its workers are free.

    `unable` are those of them that lack ops of its model, each with what it lacks.
    """

    job: str
    reason: str
    unable: dict[str, str] = {}


class JobLoading(Decision, frozen=True):
    """The plan is made; workers it does not name are free again, and why some were `unable` is told."""

    job: str
    plan: Plan
    owned: list[list[str]]
    unable: dict[str, str] = {}


class JobRunning(Decision, frozen=True):
    """Every worker has loaded; unit 0 has begun."""

    job: str


class UnitDecided(Decision, frozen=True):
    """The unit is over on every worker; a training step is applied with gradients times `scale`."""

    job: str
    attempt: int
    unit: int
    scale: float
    loss: float
    gradient_norm: float
    bytes_sent: int


class CodecsDecided(Decision, frozen=True):
    """From `unit` on the job's links are written by `codecs`, and those that are not named dense."""

    job: str
    attempt: int
    unit: int
    codecs: list[LinkCodec]
    changes: list[CodecChange]


class JobCollecting(Decision, frozen=True):
    """No further unit runs; workers send their state, then the job ends as `state`."""

    job: str
    state: str
    reason: str


class JobEnded(Decision, frozen=True):
    """The job is over: `state` is done, failed or cancelled."""

    job: str
    state: str
    reason: str


class WorkerProved(msgspec.Struct, frozen=True):
    """The worker's key has answered at `addresses`."""

    worker: str
    addresses: list[str]


class WorkerLoaded(msgspec.Struct, frozen=True):
    """Observed: the worker holds its segments and is linked to its neighbours."""

    job: str
    worker: str


class WorkerReady(msgspec.Struct, frozen=True):
    """Observed: the worker's shares of the current unit."""

    job: str
    worker: str
    ready: UnitReady


class Steered(msgspec.Struct, frozen=True):
    """Observed: what the job's links were like, as far as it matters to how they are written."""

    job: str
    helm: TuningState


class WaitExplained(msgspec.Struct, frozen=True):
    """Observed: the words in which the submitter was told what a queued job waits for."""

    job: str
    words: str


AnyDecision = (
    WorkerAdmitted
    | WorkerMoved
    | WorkerLost
    | JobSubmitted
    | JobPlanning
    | JobRequeued
    | JobLoading
    | JobRunning
    | UnitDecided
    | CodecsDecided
    | JobCollecting
    | JobEnded
)
Observation = WorkerProved | WorkerLoaded | WorkerReady | WaitExplained | Steered
Fact = AnyDecision | Observation


def encode(fact: AnyDecision) -> bytes:
    """The decision as the store keeps it."""
    return msgspec.msgpack.encode(fact)


def decode(data: bytes) -> AnyDecision:
    """Read one decision back.

    Raises
    ------
    FarflungError
        The record is damaged or was written by another version.
    """
    try:
        return msgspec.msgpack.decode(data, type=AnyDecision)
    except (msgspec.DecodeError, ValueError) as error:
        raise FarflungError(
            f"the broker's log holds a record that this version cannot read ({error}): "
            "start the version that wrote it, or a new folder"
        ) from None

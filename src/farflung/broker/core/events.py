"""What happens to the broker (events), and what it then does (commands)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farflung.broker.network.worker_addresses import WorkerAddresses
from farflung.plans import NO_WISHES, Plan, Prediction, Wishes
from farflung.plans.ability import Ability
from farflung.protocol.messages import (
    AskCircuit,
    AskReverse,
    Broken,
    Cancel,
    Collected,
    Loaded,
    Message,
    NotReached,
    Refused,
    Register,
    Submit,
    UnitReady,
)
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.training import Training

if TYPE_CHECKING:
    from farflung.planner.codecs.steering import Over, Steering, Verdict


@dataclass(frozen=True)
class Event:
    """Base of every event. `now` is in seconds since 1970 and never runs backwards within one broker."""

    now: float


@dataclass(frozen=True)
class Restarted(Event):
    """The broker has just replayed its log; no link of before is left."""


@dataclass(frozen=True)
class Tick(Event):
    """Time has passed. `patience_seconds` is what any wait for progress may last at least."""

    patience_seconds: float


@dataclass(frozen=True)
class WorkerJoins(Event):
    """A worker registers, which is to be found at `where`.

    `heard_seconds` ago its older link, if one is open, last brought anything; it is suspect after
    `suspect_seconds` of silence.
    """

    worker: str
    register: Register
    where: WorkerAddresses
    heard_seconds: float | None
    suspect_seconds: float


@dataclass(frozen=True)
class WorkerMoves(Event):
    """A registered worker is to be found elsewhere."""

    worker: str
    where: WorkerAddresses


@dataclass(frozen=True)
class WorkerProved(Event):
    """Of the addresses that a worker claims its key has answered at these."""

    worker: str
    claims: tuple[str, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class WorkerLeaves(Event):
    """A registered worker's line is over: its link closed, and none took its place within the lease."""

    worker: str
    reason: str


@dataclass(frozen=True)
class WorkerSays(Event):
    """A message of a registered worker."""

    worker: str
    message: Loaded | Refused | UnitReady | Broken | AskReverse | AskCircuit | NotReached


@dataclass(frozen=True)
class SubmitterSays(Event):
    """A message of a submitter, which the broker sees at `remote` (HOST:PORT)."""

    submitter: str
    message: Submit | Collected | Cancel | AskReverse | AskCircuit
    remote: str


@dataclass(frozen=True)
class SubmitterLeaves(Event):
    """The line over which `job` was submitted is over."""

    job: str
    reason: str


@dataclass(frozen=True)
class PlanMade(Event):
    """The planner is done; `programs` and `owned` have one entry a segment.

    `prediction` is what the plan promises; None where nothing is known of workers and links. `unable` says of
    workers that lack ops of the model why they have no part, `notes` what else the plan does not promise.
    `steering` is what it takes to choose codecs anew while the job runs (`broker.steering`); empty for never.
    """

    job: str
    attempt: int
    plan: Plan
    programs: list[SegmentProgram]
    owned: list[list[str]]
    prediction: Prediction | None = None
    unable: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    steering: bytes = b""


@dataclass(frozen=True)
class PlanFailed(Event):
    """There is no plan, for a reason the user can read."""

    job: str
    attempt: int
    reason: str


@dataclass(frozen=True)
class PlanLacks(Event):
    """Too few of the workers can run the model; `unable` says of each of the others what it lacks."""

    job: str
    attempt: int
    unable: Mapping[str, str]


@dataclass(frozen=True)
class CodecsConsidered(Event):
    """The steering of a job has looked at the units that it was shown."""

    job: str
    attempt: int
    steering: Steering
    verdict: Verdict


@dataclass(frozen=True)
class Send:
    """To a registered worker."""

    worker: str
    message: Message


@dataclass(frozen=True)
class Tell:
    """To the link over which `job` was submitted, if it still is there."""

    job: str
    message: Message


@dataclass(frozen=True)
class Reply:
    """To the link that brought the event."""

    message: Message


@dataclass(frozen=True)
class Admit:
    """The link that brought the event is now the worker's; an older one is closed with `reason`."""

    worker: str
    reason: str


@dataclass(frozen=True)
class Reject:
    """Tell the link that brought the event why it is refused, and close it; see `protocol.Denied`."""

    reason: str
    for_now: bool = False


@dataclass(frozen=True)
class RunPlanner:
    """Plan the job on `count` of these workers, off the loop. Answered by `PlanMade`, `PlanFailed` or
    `PlanLacks`.

    Each of the `count` gets a part; with 0 the plan takes as many as serve it. `abilities` say what
    each worker can compute; nothing is kept from one that has none.
    """

    job: str
    attempt: int
    graph: bytes
    training: Training
    workers: tuple[str, ...]
    count: int
    wishes: Wishes = NO_WISHES
    abilities: Mapping[str, Ability] = field(default_factory=dict)


@dataclass(frozen=True)
class ConsiderCodecs:
    """Show the steering of a job these units, off the loop. Answered by `CodecsConsidered`."""

    job: str
    attempt: int
    steering: Steering
    units: tuple[Over, ...]


@dataclass(frozen=True)
class OpenCircuit:
    """Give `dialler` and `target` an end each of a circuit through `relay` (a worker's id, or `broker`).

    `byte_quota` is what it may carry, `addresses` where each of the two finds the relay. What is said of it
    goes to the asker under `number`.
    """

    number: int
    job: str
    attempt: int
    dialler: str
    target: str
    submitter: str
    relay: str
    addresses: Mapping[str, Sequence[str]]
    byte_quota: int


Command = Send | Tell | Reply | Admit | Reject | RunPlanner | ConsiderCodecs | OpenCircuit

"""The input and output of the state machine: events go in, commands come out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from farflung.broker.core.blobs import Digest
from farflung.broker.core.records import REPLACE_SECONDS
from farflung.broker.core.trusting.records import MOST_SUSPICIONS
from farflung.broker.network.worker_addresses import WorkerAddresses
from farflung.broker.planning.messages import PlanResult
from farflung.plans import NO_WISHES, Plan, Wishes
from farflung.plans.ability import Ability
from farflung.protocol.messages import (
    AskCircuit,
    AskReverse,
    Broken,
    Cancel,
    CheckBegun,
    Checked,
    Collected,
    Copied,
    CopyLost,
    Keep,
    Kept,
    Load,
    Loaded,
    Message,
    NotReached,
    Refused,
    Register,
    Return,
    Stalled,
    Submit,
    UnitReady,
)
from farflung.protocol.registration import Measured
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.training import Training

if TYPE_CHECKING:
    from farflung.planner.codecs.tuner import CodecTuner, FinishedUnit, Verdict


@dataclass(frozen=True)
class Event:
    """Base of every event. `now` is in seconds since 1970 and never runs backwards within one broker."""

    now: float


@dataclass(frozen=True)
class Restarted(Event):
    """The broker has just replayed its log; all earlier connections are gone.

    After `most_suspicions` a worker gets no jobs.
    """

    most_suspicions: int = MOST_SUSPICIONS


@dataclass(frozen=True)
class Tick(Event):
    """Time has passed. Every wait for progress may last at least `patience_seconds`.

    An away worker counts as lost after `return_seconds`. A job whose submitter is away keeps its workers for
    `hold_seconds`. A job waits at least `replace_seconds` for lost workers whose state is on disks.
    """

    patience_seconds: float
    return_seconds: float = math.inf
    hold_seconds: float = math.inf
    replace_seconds: float = REPLACE_SECONDS


@dataclass(frozen=True)
class WorkerRegisters(Event):
    """A worker registers; `where` holds its addresses.

    If an older session of it is open, its last bytes arrived `silent_seconds` ago. A session is suspect after
    `suspect_seconds` of silence. `generation` and `seal` are the broker's own.
    """

    worker: str
    register: Register
    where: WorkerAddresses
    silent_seconds: float | None
    suspect_seconds: float
    generation: int = 0
    seal: bytes = b""


@dataclass(frozen=True)
class WorkerMoves(Event):
    """The addresses of a registered worker have changed."""

    worker: str
    where: WorkerAddresses


@dataclass(frozen=True)
class WorkerMeasures(Event):
    """A registered worker has measured its device again."""

    worker: str
    measured: Measured


@dataclass(frozen=True)
class WorkerVerified(Event):
    """The worker's key answered at `addresses`, which are among its `claims`."""

    worker: str
    claims: tuple[str, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class WorkerLeaves(Event):
    """A registered worker's session ended: its connection closed and was not replaced within the lease."""

    worker: str
    reason: str


@dataclass(frozen=True)
class LeaveAsked(Event):
    """A worker, or an operator, asks that the worker may leave within `within_seconds`.

    An `operator` gets an answer.
    """

    worker: str
    within_seconds: float
    operator: str = ""


@dataclass(frozen=True)
class WorkerMessage(Event):
    """A message from a registered worker."""

    worker: str
    message: (
        Loaded | Refused | UnitReady | Broken | Copied | CopyLost | CheckBegun | Checked
        | AskReverse | AskCircuit | NotReached
    )  # fmt: skip


@dataclass(frozen=True)
class SubmitterMessage(Event):
    """A message from a submitter, whose connection comes from `remote` (HOST:PORT).

    `elsewhere` are the jobs that other open sessions of this submitter hold, with the seconds since their
    last bytes. A session is suspect after `suspect_seconds` of silence. While the broker takes no new jobs,
    `alarm` says why. From `draws`, a random number, follows which shares of a new job are checked. A worker
    that loads may stall for `patience_seconds`.
    """

    submitter: str
    message: Submit | Return | Stalled | Keep | Kept | Collected | Cancel | AskReverse | AskCircuit
    remote: str
    elsewhere: Mapping[str, float] = field(default_factory=dict)
    suspect_seconds: float = 0.0
    alarm: str = ""
    draws: int = 0
    patience_seconds: float = 0.0


@dataclass(frozen=True)
class SubmitterLeaves(Event):
    """The session that holds `job` ended."""

    job: str
    reason: str


@dataclass(frozen=True)
class PlanMade(Event):
    """The planner has made a plan."""

    job: str
    attempt: int
    result: PlanResult


@dataclass(frozen=True)
class PlanFailed(Event):
    """Planning failed, for a reason the user can read."""

    job: str
    attempt: int
    reason: str


@dataclass(frozen=True)
class PlanLacks(Event):
    """Too few of the workers can run the model; `unable` says what each of the others lacks."""

    job: str
    attempt: int
    unable: Mapping[str, str]


@dataclass(frozen=True)
class PlanConsidered(Event):
    """Another plan for a job that runs; None if there is none, for a `reason`.

    A step of the plan that it has would take `current_seconds` by the same prediction.
    """

    job: str
    attempt: int
    result: PlanResult | None
    current_seconds: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class TuningRead(Event):
    """The initial state of the job's codec tuning, of a job that ran before the broker was restarted."""

    job: str
    attempt: int
    steering: bytes


@dataclass(frozen=True)
class CodecsConsidered(Event):
    """Codec tuning of a job has examined the units that it was given."""

    job: str
    attempt: int
    steering: CodecTuner
    verdict: Verdict


@dataclass(frozen=True)
class Send:
    """Send a message to a registered worker."""

    worker: str
    message: Message


@dataclass(frozen=True)
class SendLoad:
    """Send a `Load` to a registered worker. `load` lacks the programs, which are the blobs `programs`."""

    worker: str
    load: Load
    programs: tuple[Digest, ...]

    def message(self, blobs: Mapping[Digest, bytes]) -> Load:
        """The whole message; `blobs` hold its programs."""
        programs = [msgspec.msgpack.decode(blobs[digest], type=SegmentProgram) for digest in self.programs]
        return msgspec.structs.replace(self.load, programs=programs)


@dataclass(frozen=True)
class SendToSubmitter:
    """Send a message over the session that holds `job`, if there is one."""

    job: str
    message: Message


@dataclass(frozen=True)
class Hold:
    """Let the session that sent the event hold the job; close an older one with `reason`."""

    job: str
    reason: str


@dataclass(frozen=True)
class ReadTuning:
    """Read the initial state of the job's codec tuning, the blob `steering`. Answered by `TuningRead`."""

    job: str
    attempt: int
    steering: Digest


@dataclass(frozen=True)
class Reply:
    """Answer the sender of the event."""

    message: Message


@dataclass(frozen=True)
class Admit:
    """Make the session that sent the event the worker's; close an older one with `reason`."""

    worker: str
    reason: str


@dataclass(frozen=True)
class Reject:
    """Tell the sender of the event why it is refused, and close its session; see `protocol.viewer.Denied`."""

    reason: str
    for_now: bool = False


@dataclass(frozen=True)
class Expel:
    """Close every session of a member that was removed, and tell it why."""

    member: str
    reason: str


@dataclass(frozen=True)
class RunPlanner:
    """Plan the job, whose OP-DAG is the blob `graph`, on `count` of these workers, outside the event loop.

    Answered by `PlanMade`, `PlanFailed` or `PlanLacks`. Each of the `count` workers gets a part; with 0 the
    planner chooses how many to use. `abilities` say what each worker can compute; a worker that is not listed
    can run everything. The plan should leave memory for `copies` copies of each worker's state. Workers that
    are `slow` take so many times as long as was measured when they joined.
    """

    job: str
    attempt: int
    graph: Digest
    training: Training
    workers: tuple[str, ...]
    count: int
    wishes: Wishes = NO_WISHES
    abilities: Mapping[str, Ability] = field(default_factory=dict)
    copies: int = 0
    slow: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ConsiderPlan(RunPlanner):
    """Look for a better plan of a job that runs on the plan `current`. Answered by `PlanConsidered`."""

    current: Plan | None = None


@dataclass(frozen=True)
class ConsiderCodecs:
    """Let codec tuning examine these units, outside the event loop. Answered by `CodecsConsidered`."""

    job: str
    attempt: int
    steering: CodecTuner
    units: tuple[FinishedUnit, ...]


@dataclass(frozen=True)
class NoteApart:
    """Remember that two members of a job could not link up, so that plans do without their link.

    It is not logged. It is forgotten once one of the two registers again or moves, or they do link up.
    """

    worker: str
    peer: str
    reason: str


@dataclass(frozen=True)
class OpenCircuit:
    """Give `dialler` and `target` one end each of a circuit through `relay` (a worker's id, or `broker`).

    `byte_quota` is what it may carry, `addresses` where each of the two can dial the relay. Answers repeat
    the asker's `number`.
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


Command = (
    Send
    | SendLoad
    | SendToSubmitter
    | Hold
    | Reply
    | Admit
    | Reject
    | Expel
    | RunPlanner
    | ConsiderPlan
    | ReadTuning
    | ConsiderCodecs
    | NoteApart
    | OpenCircuit
)

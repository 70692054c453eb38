"""Control messages. One msgpack-encoded tagged struct each; unknown tags and fields are refused.

A connection's direction and the peer's role decide which union is legal on it, so a worker cannot send what
only a submitter may say.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from farflung.errors import ProtocolError
from farflung.plan import Plan
from farflung.protocol.fields import Addresses, Count, Id, Message, Name, Text
from farflung.protocol.reaching import (
    AskCircuit,
    AskReverse,
    Circuit,
    DialBack,
    HoldCircuit,
    LinkReport,
    Links,
    NotReached,
)
from farflung.runtime.training import Training
from farflung.transport.headers import Receipt
from farflung.transport.wording import printable


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker offers. `memory_bytes` is what its owner lets jobs use, `framework` what it runs."""

    kind: Id
    name: Text
    cores: Count
    memory_bytes: Count
    framework: Text
    opset: Text


# worker or submitter -> broker, first on a control link


class Attach(Message, frozen=True):
    """This link carries on the session of the sender's nonce; the fields are those of `Claim`.

    What both sides say after it and its answer reaches the other once, in order, even if links are lost.
    """

    session: Id
    number: Count = 1
    previous: Count = 0
    received: Receipt = Receipt()


class Attached(Message, frozen=True):
    """The answer: `received` is what has come over the link that was called previous."""

    received: Receipt = Receipt()


# worker -> broker


class Register(Message, frozen=True):
    """First message of a worker: `addresses` (HOST:PORT) lead peers to it, `boot` is new per process.

    `relay_mbps` is what it carries for peers who cannot reach each other; 0 is nothing.
    """

    device: Device
    site: Text
    addresses: Addresses
    boot: Id
    relay_mbps: Annotated[float, Meta(ge=0, le=1e6)] = 0.0


class Moved(Message, frozen=True):
    """A registered worker is to be found at other `addresses` now."""

    addresses: Addresses


class Loaded(Message, frozen=True):
    """The worker has verified its segments, holds their whole state and is linked to its neighbours."""

    job: Id
    attempt: Count


class Refused(Message, frozen=True):
    """The worker will not run this job; `reason` is one line for the user."""

    job: Id
    attempt: Count
    reason: Text


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One segment's part of a unit.

    `square_sum` is the float64 sum of squares over the gradients the segment owns, `finite` whether all of
    them (and its loss) are; `loss` is its float64 sum of w_m * loss_m (0.0 without the loss).
    """

    segment: Count
    square_sum: float
    finite: bool
    loss: float


class UnitReady(Message, frozen=True):
    """Every microbatch of the unit has run here; `bytes_sent` went out on data links since the last ready."""

    job: Id
    attempt: Count
    unit: Count
    shares: Annotated[list[Share], Meta(max_length=100_000)]
    bytes_sent: Count


class Broken(Message, frozen=True):
    """The worker cannot go on with the job (a peer was lost, an error in a segment)."""

    job: Id
    attempt: Count
    reason: Text


# broker -> worker


class Registered(Message, frozen=True):
    """The broker admits the worker to the backup pool."""

    worker: Id


class PeerMoved(Message, frozen=True):
    """To whom a job links to `worker`: it is to be found at these addresses from now on."""

    worker: Id
    addresses: Addresses


class SegmentProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One segment of the job as the OP-DAG wire format writes it.

    `owned` maps the parameters and buffers it owns to their sizes in bytes, so that a worker can take the
    state while it still verifies the program (and refuse both where they disagree).
    """

    segment: Count
    program: bytes
    owned: dict[Name, Count] = {}


class Load(Message, frozen=True):
    """Take these segments. `addresses` maps neighbours to HOST:PORT lists; dial those with a greater id."""

    job: Id
    attempt: Count
    plan: Plan
    training: Training
    programs: Annotated[list[SegmentProgram], Meta(max_length=100_000)]
    addresses: dict[Id, Addresses]
    submitter: Id


class Begin(Message, frozen=True):
    """Every worker has loaded: run unit 0, then each next unit when the one before is decided."""

    job: Id
    attempt: Count


class Decide(Message, frozen=True):
    """The unit is decided: a step is applied with gradients times `scale`, an evaluation only ends."""

    job: Id
    attempt: Count
    unit: Count
    scale: float


class SendState(Message, frozen=True):
    """Send the owned parameters and buffers of every segment, as they stand, to the submitter."""

    job: Id
    attempt: Count


class Stop(Message, frozen=True):
    """Drop the job's work and memory and go back to the backup pool."""

    job: Id
    attempt: Count
    reason: Text


# worker -> whoever dialled it (another worker, the submitter), over the data link


class Claim(Message, frozen=True):
    """First message of whoever dialled a data link: the attempt it is for, and the session it carries on.

    `session` is the dialler's nonce for this peer and attempt, `number` counts its claims from 1, `previous`
    is the last link of the session that was welcomed (0: none) and `received` what has come over that one.
    """

    job: Id
    attempt: Count
    session: Id = "session"
    number: Count = 1
    previous: Count = 0
    received: Receipt = Receipt()


class Welcome(Message, frozen=True):
    """The link belongs to this attempt: data may be sent. Whoever dials waits for it.

    `received` is what has come over the link that the claim calls previous.
    """

    job: Id
    attempt: Count
    received: Receipt = Receipt()


# submitter -> broker


class Submit(Message, frozen=True):
    """A job: the OP-DAG on the wire (no weights), how to train it, and on how many workers.

    `workers` = 0 takes every idle worker that the model can be cut for. `on` names them instead: each gets a
    part, in this order.
    """

    name: Text
    graph: bytes
    training: Training
    workers: Count
    on: Annotated[list[Id], Meta(max_length=100_000)] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.on and not self.workers == len(self.on) == len(set(self.on)):
            raise ValueError(f"a job on {len(self.on)} named workers, all different, must ask for as many")


class Collected(Message, frozen=True):
    """The submitter holds and has written the state it asked for."""

    job: Id
    attempt: Count


class Cancel(Message, frozen=True):
    """End the job; with `collect` the workers first send the state of the last applied step."""

    job: Id
    reason: Text
    collect: bool


class Ask(Message, frozen=True):
    """What is going on? Answered by `Status`; any role may ask."""


class Renew(Message, frozen=True):
    """A certificate request (PEM) for the key, id and role of the connection it comes over."""

    request: Annotated[bytes, Meta(max_length=4096)]


# broker -> submitter


class Accepted(Message, frozen=True):
    """The job's id, and its state in words ("waiting for 1 more worker (have 1, plan needs 2)")."""

    job: Id
    state: Text


class Planned(Message, frozen=True):
    """The plan: dial these workers, send each segment's state to its worker, then feed when `Running`.

    `owned[s]` names the parameters and buffers that segment s owns: what the submitter sends to its worker
    and gets back at the end. A parameter used by several segments is owned by the first of them.
    """

    job: Id
    attempt: Count
    plan: Plan
    owned: list[list[str]]
    addresses: dict[Id, Addresses]


class Running(Message, frozen=True):
    """Every worker has loaded; unit 0 has begun."""

    job: Id
    attempt: Count


class UnitDone(Message, frozen=True):
    """A unit was decided. `loss` sums the shares in segment order, `gradient_norm` is before clipping."""

    job: Id
    attempt: Count
    unit: Count
    loss: float
    gradient_norm: float
    bytes_sent: Count


class Collecting(Message, frozen=True):
    """Workers now send their state (of step `step`); `state` and `reason` tell how the job ends."""

    job: Id
    attempt: Count
    step: Count
    state: Text
    reason: Text


class Ended(Message, frozen=True):
    """The job is over: `state` is done, failed or cancelled."""

    job: Id
    state: Text
    reason: Text


class Denied(Message, frozen=True):
    """The broker refuses what was asked, with one line for the user."""

    reason: Text


class Renewed(Message, frozen=True):
    """The certificate (PEM) that was asked for."""

    certificate: Annotated[bytes, Meta(max_length=4096)]


class WorkerStatus(msgspec.Struct, frozen=True):
    """One worker as `farflung status` shows it; `state` is idle, loading, running or lost."""

    worker: str
    state: str
    device: str
    site: str
    address: str
    last_seen_seconds: float
    job: str
    relay_mbps: float


class JobStatus(msgspec.Struct, frozen=True):
    """One job as `farflung status` shows it; an emulated one has no loss."""

    job: str
    name: str
    state: str
    reason: str
    step: int
    steps: int
    loss: float | None
    samples_per_second: float | None
    workers: list[str]
    emulated: bool = False


class LinkView(msgspec.Struct, frozen=True):
    """How `holder` reaches one peer of a job, as it last reported."""

    holder: str
    job: str
    report: LinkReport


class Status(Message, frozen=True):
    """Everything `farflung status` prints. `relay_mbps` is what the broker itself carries for peers."""

    version: str
    uptime_seconds: float
    workers: list[WorkerStatus]
    jobs: list[JobStatus]
    backup_pool: list[str]
    timeouts: dict[str, float]
    links: list[LinkView]
    relay_mbps: float


FromWorker = (
    Attach
    | Register
    | Moved
    | Loaded
    | Refused
    | UnitReady
    | Broken
    | AskReverse
    | AskCircuit
    | NotReached
    | Links
    | Ask
    | Renew
)
FromSubmitter = Attach | Submit | Collected | Cancel | AskReverse | AskCircuit | Links | Ask | Renew
FromPeer = Claim | Welcome
FromViewer = Ask | Renew
ToWorker = (
    Attached | Registered | Load | Begin | Decide | SendState | Stop | PeerMoved | DialBack | Circuit
    | NotReached | HoldCircuit | Denied | Status | Renewed
)  # fmt: skip
ToSubmitter = (
    Attached
    | PeerMoved
    | Accepted
    | Planned
    | Running
    | UnitDone
    | Collecting
    | Ended
    | Circuit
    | NotReached
    | Denied
    | Status
    | Renewed
)
ToViewer = Denied | Status | Renewed

AnyMessage = TypeVar("AnyMessage")


def encode(message: Message) -> bytes:
    """The message as it travels."""
    return msgspec.msgpack.encode(message)


def decode(data: bytes, union: Any) -> Any:
    """Read one message of `union` (one of the unions above).

    Raises
    ------
    ProtocolError
        The bytes are not msgpack, not one of the union's messages, or break a field's bounds.
    """
    try:
        return msgspec.msgpack.decode(data, type=union)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a control message was refused: {printable(str(error))}") from None

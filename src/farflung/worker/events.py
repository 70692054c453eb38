"""What a worker's state machine is given (events), and what it answers (commands)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farflung.plans import LinkCodec
from farflung.protocol import messages
from farflung.protocol.messages import Checked, Load, Message, ServeCheck
from farflung.protocol.timeline import StepSpan
from farflung.protocol.traffic import LinkRate
from farflung.protocol.worker import Share
from farflung.runtime.parcel import Sent

Attempt = tuple[str, int] | tuple[str, int, int]
"""A job and its attempt, which count from 1 in every job; and the number of a check beside the attempt."""


@dataclass(frozen=True)
class FromBroker:
    """A message of the broker."""

    message: Message


@dataclass(frozen=True)
class BrokerLost:
    """The session with the broker is lost."""

    reason: str


@dataclass(frozen=True)
class BrokerBack:
    """The broker can be reached again; it may have missed what was sent before."""


@dataclass(frozen=True)
class Orphaned:
    """There was no broker for `seconds`, which is as long as a job is kept."""

    seconds: float


@dataclass(frozen=True)
class Leave:
    """The worker's owner wants it to leave, within `within_seconds`."""

    within_seconds: int


@dataclass(frozen=True)
class LeftBehind:
    """The time in which the broker could release the worker is over."""


@dataclass(frozen=True)
class Verified:
    """The programs of the attempt are verified (`problem` is None) or refused.

    `unprotected` says why the worker can make no copies of its state; empty if it can. Its part needs
    `needs_bytes` of memory. It `lacks` a part of its state if copies on disk do not have it;
    the one that was read has the SHA-256 `begun`, empty if another worker may read it all the same.
    """

    attempt: Attempt
    problem: str | None
    unprotected: str = ""
    needs_bytes: int = 0
    lacks: bool = False
    begun: bytes = b""


@dataclass(frozen=True)
class Filled:
    """The whole state has been received and verified."""

    attempt: Attempt


@dataclass(frozen=True)
class PeerLinked:
    """A data link to a neighbour or the submitter is up."""

    peer: str


@dataclass(frozen=True)
class PeerLost:
    """A data link to a neighbour or the submitter is lost, or could not be made."""

    peer: str
    reason: str


@dataclass(frozen=True)
class Traffic:
    """What data links carried since the last unit, as in `UnitReady`; `wire_bytes` are by target.

    `copied` are the bytes of state, which the others leave out.
    """

    bytes_sent: int = 0
    wire_bytes: Mapping[str, int] = field(default_factory=dict)
    rates: tuple[LinkRate, ...] = ()
    logged_from: int | None = None
    copied: int = 0


@dataclass(frozen=True)
class UnitFinished:
    """Every microbatch of a unit has run here.

    `sent` counts what was encoded for other workers; the tasks took `computing_seconds`. If the unit is
    watched, they `ran` at these moments of `time.perf_counter`.
    """

    attempt: Attempt
    unit: int
    shares: tuple[Share, ...]
    sent: tuple[Sent, ...] = ()
    computing_seconds: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)
    ran: tuple[StepSpan, ...] = ()


@dataclass(frozen=True)
class UnitReplayed:
    """A unit of the load's history is applied again, or passed over."""

    attempt: Attempt
    unit: int


@dataclass(frozen=True)
class CheckEnded:
    """The share that this worker checks has run again."""

    attempt: Attempt
    found: Checked


@dataclass(frozen=True)
class ComputeFailed:
    """A segment raised an error, on what `sender` sent if that is given: the submitter, or another worker."""

    attempt: Attempt
    reason: str
    sender: str | None = None


Event = (
    FromBroker
    | BrokerLost
    | BrokerBack
    | Orphaned
    | Leave
    | LeftBehind
    | Verified
    | Filled
    | PeerLinked
    | PeerLost
    | UnitFinished
    | UnitReplayed
    | CheckEnded
    | ComputeFailed
)


@dataclass(frozen=True)
class Tell:
    """Send a message to the broker."""

    message: Message


@dataclass(frozen=True)
class Prepare:
    """Allocate memory for the state, verify the programs on the compute thread, dial the peers in `dial`."""

    load: Load
    dial: tuple[str, ...]


@dataclass(frozen=True)
class Regroup:
    """Keep the state, drop the unit in flight and the links, and dial the peers in `dial`.

    Answered by `Filled`. `load` is that of the job with what is new in the attempt. If it `serves`,
    neighbours run the units from `replay_from` on again, with what this worker sent then.
    """

    load: Load
    dial: tuple[str, ...]
    serves: bool = False
    replay_from: int = 0


@dataclass(frozen=True)
class Assist:
    """Hold copies of a job in which this worker has no part: admit its members, dial the peers in `dial`."""

    load: Load
    standbys: Mapping[str, str]
    dial: tuple[str, ...]


@dataclass(frozen=True)
class ChangeStandbys:
    """Exchange copies with other standbys from now on; dial the peers in `dial`, at these `addresses`."""

    standbys: Mapping[str, str]
    addresses: Mapping[str, list[str]]
    dial: tuple[str, ...]


@dataclass(frozen=True)
class AssistCheck:
    """Dial a worker that checks another member's share, and give it what was sent there."""

    check: ServeCheck


@dataclass(frozen=True)
class EndCheck:
    """Close the link with a worker that checked another member's share."""

    checker: str


@dataclass(frozen=True)
class Start:
    """Run the first unit, and each further one when the one before it is decided."""


@dataclass(frozen=True)
class Apply:
    """End a unit with gradients times `scale`; `codecs`, if given, are the links' new codec pairs."""

    unit: int
    scale: float
    codecs: tuple[LinkCodec, ...] | None = None


@dataclass(frozen=True)
class AdvanceReplay:
    """Go on to the next unit of the load's history."""


@dataclass(frozen=True)
class EndTraining:
    """Drop the unit in flight and run no other: its memory is needed for copies of the state."""


@dataclass(frozen=True)
class CopyState:
    """Copy the state, as unit `unit` has just left it, while training goes on.

    The copy is to `keep` at the submitter, or to `copy` to this worker's disk and its holder's.
    """

    unit: int
    keep: bool = False
    copy: bool = False


@dataclass(frozen=True)
class Retain:
    """Delete copies from the disk as this message says."""

    message: messages.Retain


@dataclass(frozen=True)
class GiveState:
    """Send the state of the owned tensors to the submitter; if `whole`, with optimizer and coders."""

    whole: bool = False


@dataclass(frozen=True)
class GiveTo:
    """Send the state to a worker of another pipeline that lacks it, as `Load.state_donors` says."""

    taker: str


@dataclass(frozen=True)
class Drop:
    """Drop the job: its memory, tapes and data links; if it is `over`, also copies of its state on disk."""

    reason: str
    job: str = ""
    over: bool = False


@dataclass(frozen=True)
class HangUp:
    """End the session with the broker, and dial again."""

    reason: str


@dataclass(frozen=True)
class Exit:
    """End this process; `reason` is for its owner. Others may lack what it held if not `in_order`."""

    reason: str
    in_order: bool = True


@dataclass(frozen=True)
class Note:
    """One line for the worker's owner."""

    text: str


Command = (
    Tell
    | Prepare
    | Regroup
    | Assist
    | ChangeStandbys
    | AssistCheck
    | EndCheck
    | Start
    | Apply
    | AdvanceReplay
    | CopyState
    | Retain
    | EndTraining
    | GiveState
    | GiveTo
    | Drop
    | HangUp
    | Exit
    | Note
)

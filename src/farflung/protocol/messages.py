"""Which role may send which messages, and how messages are encoded.

A message is one msgpack-encoded tagged struct; unknown tags and fields are refused. The structs live in the
modules of this package, by role and purpose. A connection's direction and the peer's role decide which union
of messages is legal on it, so a worker cannot send a submitter's messages.
"""

from __future__ import annotations

from typing import Any

import msgspec

from farflung.errors import ProtocolError
from farflung.protocol.checks import CheckBegun, Checked, ServeCheck
from farflung.protocol.copies import AskBase, Copied, CopyLost, Retain
from farflung.protocol.fields import Message
from farflung.protocol.members import (
    AllowMember,
    AskMembers,
    CancelJob,
    JobCancelled,
    MemberAllowed,
    MemberChanged,
    MemberRemoved,
    Members,
    RemoveMember,
)
from farflung.protocol.membership import Drain, Draining, Leaving, Released
from farflung.protocol.probing import AskTopology, EndProbe, FleetTopology, Probe, Probed
from farflung.protocol.reachability import (
    AskCircuit,
    AskReverse,
    Circuit,
    DialBack,
    HoldCircuit,
    Links,
    NotReached,
)
from farflung.protocol.registration import Measured, Moved, PeerMoved, Register, Registered
from farflung.protocol.sessions import Attach, Attached, BaseLacking, BaseList, Claim, Pull, Welcome
from farflung.protocol.submitter import (
    Accepted,
    Cancel,
    CheckSaid,
    CodecsChosen,
    Collected,
    Collecting,
    Considered,
    Ended,
    FeedCheck,
    Keep,
    Kept,
    Planned,
    Return,
    RolledBack,
    Running,
    Stalled,
    Submit,
    UnitDone,
)
from farflung.protocol.timeline import AskStep, ShowStep, StepShown, StepTimeline
from farflung.protocol.viewer import Ask, Denied, Renew, Renewed, Status
from farflung.protocol.worker import (
    Begin,
    Broken,
    Continue,
    Decide,
    Load,
    Loaded,
    Refused,
    SendState,
    StandBy,
    Standbys,
    Stop,
    UnitReady,
)
from farflung.text import printable

FromWorker = (
    Attach
    | Register
    | Moved
    | Measured
    | Loaded
    | Refused
    | UnitReady
    | Broken
    | Copied
    | CopyLost
    | CheckBegun
    | Checked
    | Leaving
    | AskReverse
    | AskCircuit
    | NotReached
    | Links
    | Probed
    | StepShown
    | Ask
    | AskStep
    | AskTopology
    | Renew
)
FromSubmitter = (
    Attach
    | Submit
    | Return
    | Stalled
    | Keep
    | Kept
    | Collected
    | Cancel
    | CancelJob
    | AskReverse
    | AskCircuit
    | Links
    | Ask
    | AskStep
    | AskTopology
    | Renew
)
FromPeer = Claim | Welcome | Pull | AskBase | BaseList | BaseLacking
FromViewer = Ask | AskStep | AskTopology | Renew
FromOperator = (
    Drain | AskMembers | RemoveMember | AllowMember | CancelJob | Ask | AskStep | AskTopology | Renew
)
ToWorker = (
    Attached | Registered | Load | Continue | Begin | Decide | SendState | Stop | Retain | StandBy
    | Standbys | ServeCheck | ShowStep | PeerMoved | DialBack | Circuit | NotReached | HoldCircuit | Probe
    | EndProbe | Denied | Released | MemberRemoved | MemberAllowed | Status | FleetTopology | StepTimeline
    | Renewed
)  # fmt: skip
ToSubmitter = (
    Attached
    | PeerMoved
    | Accepted
    | Planned
    | Running
    | UnitDone
    | CodecsChosen
    | FeedCheck
    | CheckSaid
    | RolledBack
    | Collecting
    | Considered
    | Ended
    | JobCancelled
    | Circuit
    | NotReached
    | Denied
    | Status
    | StepTimeline
    | FleetTopology
    | Renewed
)
ToViewer = Denied | Status | StepTimeline | FleetTopology | Renewed
ToOperator = ToViewer | Draining | Members | MemberChanged | JobCancelled


def encode(message: Message) -> bytes:
    """Encode a message for the wire."""
    return msgspec.msgpack.encode(message)


def decode(data: bytes, union: Any) -> Any:
    """Decode one message of `union` (one of the unions above).

    Raises
    ------
    ProtocolError
        The bytes are not msgpack, not one of the union's messages, or break a field's bounds.
    """
    try:
        return msgspec.msgpack.decode(data, type=union)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a control message was refused: {printable(str(error))}") from None

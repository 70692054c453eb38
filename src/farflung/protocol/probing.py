"""What the broker and workers say to each other to find out what the ways between workers carry.

The broker gives each probe a number that it uses once; two workers who reach each other for it use `SURVEY`
in place of a job's id, and the number in place of its attempt.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from farflung.plans import Topology
from farflung.plans.topology import MOST_MBPS
from farflung.protocol.fields import Addresses, Count, Id, Message

SURVEY = "survey"
MOST_PEERS = 64
SHORT_TEXT_LENGTH = 400

Task = Literal["pair", "out", "in", "take", "give"]
"""`pair`: probe the peer, which probes back. `out`: send to all peers at once, and say what they took. `in`:
take from all at once, and say how much. `take` and `give` are the peers' part in these, until the other side
has enough.
"""

Rate = Annotated[float, Meta(ge=0, le=MOST_MBPS)]
Milliseconds = Annotated[float, Meta(ge=0, le=1e6)]
ShortText = Annotated[str, Meta(max_length=SHORT_TEXT_LENGTH)]


class ProbedPeer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody to probe; `dials` says whether whoever is told so is the one to dial."""

    worker: Id
    addresses: Addresses
    dials: bool


class Probe(Message, frozen=True):
    """To an idle worker: measure this. Sends at most `byte_limit` bytes to each peer."""

    number: Count
    task: Task
    peers: Annotated[list[ProbedPeer], Meta(max_length=MOST_PEERS)]
    byte_limit: Count


class EndProbe(Message, frozen=True):
    """What was begun under this number is of no use any more."""

    number: Count


class ProbedLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One peer as a worker found it.

    `path` is as of a link, and told by whoever dialled; where none came about it is empty and `problem` says
    why. Without an estimate nothing was sent.
    """

    peer: Id
    path: ShortText = ""
    problem: ShortText = ""
    bandwidth_mbps: Rate | None = None
    latency_ms: Milliseconds | None = None
    bytes_sent: Count = 0
    is_settled: bool = False


class Probed(Message, frozen=True):
    """What came of a probe. `line_mbps` is what all links carried at once, where that was asked for, and
    `line_is_settled` whether that had stopped growing.

    With a `problem` of its own the worker did not try.
    """

    number: Count
    links: Annotated[list[ProbedLink], Meta(max_length=MOST_PEERS)] = msgspec.field(default_factory=list)
    line_mbps: Rate | None = None
    line_is_settled: bool = False
    bytes_sent: Count = 0
    problem: ShortText = ""


class AskTopology(Message, frozen=True):
    """How are the workers joined? Answered by `FleetTopology`; any role may ask.

    With `survey` the broker also measures anew what stands idle, which only submitters may ask for.
    """

    survey: bool = False


class MeasuredLink(msgspec.Struct, frozen=True):
    """Where the numbers of one ordered pair come from, and how old they are.

    `problem` says why the newest probe found nothing. `state` says what counts then: what was `measured`
    before, what is assumed of a way that is `not measured`, or that it is `unreachable`: no way leads there.
    """

    sender: str
    receiver: str
    seconds_old: float
    source: str
    path: str
    is_settled: bool
    problem: str = ""
    state: str = "measured"


class FleetTopology(Message, frozen=True):
    """The topology of the workers that are connected; None without any.

    `assumed` says in words what of it was not measured. `surveys` counts the surveys that have ended since
    the broker started, `survey` says how the one under way stands; empty if there is none.
    """

    topology: Topology | None
    assumed: list[str]
    measured: list[MeasuredLink]
    surveys: Count
    survey: str

"""Messages with which the broker has workers measure the links between them.

Each probe has a number of its own. When two workers connect for a probe, `SURVEY` stands for the job's id and
the probe's number for the attempt.
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
"""`pair`: probe the peer, which probes back. `out`: send to all peers at once, and report the total rate.
`in`: receive from all peers at once, and report the total rate. `take` and `give` are the peers' parts in
these two, until the other side has enough.
"""

Rate = Annotated[float, Meta(ge=0, le=MOST_MBPS)]
Milliseconds = Annotated[float, Meta(ge=0, le=1e6)]
ShortText = Annotated[str, Meta(max_length=SHORT_TEXT_LENGTH)]


class ProbedPeer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker to probe; `dials` says whether the receiver of the message dials it."""

    worker: Id
    addresses: Addresses
    dials: bool


class Probe(Message, frozen=True):
    """To an idle worker: measure links to these peers, with at most `byte_limit` bytes for each."""

    number: Count
    task: Task
    peers: Annotated[list[ProbedPeer], Meta(max_length=MOST_PEERS)]
    byte_limit: Count


class EndProbe(Message, frozen=True):
    """To a worker: stop the probe with this number."""

    number: Count


class ProbedLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's result for one peer.

    `path` is the connection's path, reported by the side that dialled. If no connection was made it is empty
    and `problem` says why. Rate and latency are None if nothing was sent.
    """

    peer: Id
    path: ShortText = ""
    problem: ShortText = ""
    bandwidth_mbps: Rate | None = None
    latency_ms: Milliseconds | None = None
    bytes_sent: Count = 0
    is_settled: bool = False


class Probed(Message, frozen=True):
    """The results of a probe.

    `line_mbps` is the rate of all links at once, if the task asked for it, and `line_is_settled` whether it
    had stopped growing. With a `problem` at this level the worker did not run the probe.
    """

    number: Count
    links: Annotated[list[ProbedLink], Meta(max_length=MOST_PEERS)] = msgspec.field(default_factory=list)
    line_mbps: Rate | None = None
    line_is_settled: bool = False
    bytes_sent: Count = 0
    problem: ShortText = ""


class AskTopology(Message, frozen=True):
    """Ask for the fleet's topology. Answered by `FleetTopology`; any role may ask.

    With `survey` the broker also measures idle workers again, which only submitters may request.
    """

    survey: bool = False


class MeasuredLink(msgspec.Struct, frozen=True):
    """The source and age of one link's numbers.

    `problem` says why the newest probe failed. `state` says which numbers the topology then has: `measured`
    (older ones), `not measured` (assumed ones), or `unreachable` (none).
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
    """The topology of the connected workers; None if there are none.

    `assumed` describes what was not measured. `surveys` counts the surveys that have ended since the broker
    started; `survey` describes the progress of the running one, and is empty if there is none.
    """

    topology: Topology | None
    assumed: list[str]
    measured: list[MeasuredLink]
    surveys: Count
    survey: str

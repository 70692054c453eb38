"""Messages by which two members of a plan come to reach each other, and report how they do.

Whoever asks gives a `number`, which every answer to it repeats. Neither of the two can make the other do more
than its plan does: the broker passes on only what members of one job say about each other.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.protocol.fields import Addresses, Count, Id, Message, Text
from farflung.transport.circuits import TOKEN_BYTES
from farflung.transport.link_stats import LinkStatus

MAXIMUM_REPORTS = 1000

Port = Annotated[int, Meta(ge=0, le=65535)]
CircuitToken = Annotated[bytes, Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]


class AskReverse(Message, frozen=True):
    """`peer` cannot be dialled from here: have it dial the asker.

    A worker is dialled where it is registered, a submitter at `port` of the host that the broker sees: nobody
    can have others dial just any address and hear what became of that.
    """

    number: Count
    job: Id
    attempt: Count
    peer: Id
    port: Port


class AskCircuit(Message, frozen=True):
    """Neither side can dial the other: give both an end of a circuit, over no relay in `without`."""

    number: Count
    job: Id
    attempt: Count
    peer: Id
    without: Annotated[list[Id], Meta(max_length=16)]


class NotReached(Message, frozen=True):
    """What was asked led nowhere: from whom it was asked of to the broker, and on to whoever asked."""

    number: Count
    job: Id
    attempt: Count
    peer: Id
    reason: Text


class DialBack(Message, frozen=True):
    """`peer`, a member of the same plan, cannot dial you: dial it at one of `addresses`.

    One on every interface (0.0.0.0) is on the broker's machine.
    """

    number: Count
    job: Id
    attempt: Count
    peer: Id
    addresses: Addresses


class Circuit(Message, frozen=True):
    """One end of a circuit: show `token` to the relay; `dials` says who then begins the TLS session.

    `relay` is a worker's id or `broker`. Without `addresses` it is where one reaches the broker.
    """

    number: Count
    job: Id
    attempt: Count
    peer: Id
    relay: Id
    addresses: Addresses
    token: CircuitToken
    dials: bool


class HoldCircuit(Message, frozen=True):
    """To a worker that relays: join the two connections that show these tokens, for so many bytes at most."""

    label: Text
    tokens: tuple[CircuitToken, CircuitToken]
    byte_quota: Count


Answers = Circuit | NotReached
"""What the broker says to whoever asked."""


class LinkReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One end's view of how it reaches `peer`. Without a `link` it does not; `tried` tells what failed.

    `port` is where this end listens.
    """

    peer: Id
    tried: Text
    port: Port
    link: LinkStatus | None


class Links(Message, frozen=True):
    """Every data link of the sender's job as it now is: an observation, by which nothing is decided."""

    job: Id
    reports: Annotated[list[LinkReport], Meta(max_length=MAXIMUM_REPORTS)]

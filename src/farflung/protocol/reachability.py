"""Messages with which two members of a plan reach each other, and report how.

A request has a `number`, which every answer repeats. The broker passes on only requests between members that
the plan links, so no member can make another one dial strangers.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.protocol.fields import Addresses, Count, Id, Message, Text
from farflung.transport.link.stats import LinkStatus
from farflung.transport.relay.circuits import TOKEN_BYTES

MAXIMUM_REPORTS = 1000

Port = Annotated[int, Meta(ge=0, le=65535)]
CircuitToken = Annotated[bytes, Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]


class AskReverse(Message, frozen=True):
    """`peer` cannot be dialled from here: ask it to dial back.

    A worker is dialled at its registered addresses, a submitter at `port` of the host that it connects from.
    So no member can make others dial arbitrary addresses.
    """

    number: Count
    job: Id
    attempt: Count
    peer: Id
    port: Port


class AskCircuit(Message, frozen=True):
    """Neither side can dial the other: ask for a circuit, over a relay that is not in `without`."""

    number: Count
    job: Id
    attempt: Count
    peer: Id
    without: Annotated[list[Id], Meta(max_length=16)]


class NotReached(Message, frozen=True):
    """A request failed. Sent by the asked member to the broker, and passed on to the asker."""

    number: Count
    job: Id
    attempt: Count
    peer: Id
    reason: Text


class DialBack(Message, frozen=True):
    """`peer`, a member of the same plan, cannot dial you: dial it at one of `addresses`.

    The host 0.0.0.0 stands for the broker's machine.
    """

    number: Count
    job: Id
    attempt: Count
    peer: Id
    addresses: Addresses


class Circuit(Message, frozen=True):
    """One end of a circuit: show `token` to the relay; the side with `dials` then begins the TLS handshake.

    `relay` is a worker's id or `broker`. Without `addresses` the relay is at the broker's address.
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
    """To a worker that relays: connect the two ends with these tokens, for at most `byte_quota` bytes."""

    label: Text
    tokens: tuple[CircuitToken, CircuitToken]
    byte_quota: Count


Answers = Circuit | NotReached
"""The broker's answers to `AskReverse` and `AskCircuit`."""


class LinkReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one end reaches `peer`. `link` is None if it does not; `tried` says which routes failed.

    `port` is the port on which this end listens.
    """

    peer: Id
    tried: Text
    port: Port
    link: LinkStatus | None


class Links(Message, frozen=True):
    """The state of all data links of the sender's job. The broker shows it and decides nothing by it."""

    job: Id
    reports: Annotated[list[LinkReport], Meta(max_length=MAXIMUM_REPORTS)]

"""How a link does, as commands and metrics show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from farflung.transport.arrivals import line_mbps
from farflung.transport.headers import Count

if TYPE_CHECKING:
    from farflung.transport.link import Link

Word = Annotated[str, Meta(max_length=100)]
HostAndPort = Annotated[str, Meta(max_length=300)]


class LinkStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One end's view of one link.

    Attributes
    ----------
    peer : The other holder's id.
    path : How the two reach each other: `direct`, `reverse` or `relay through NAME`.
    remote : HOST:PORT of the other end, or of the relay.
    congestion_control : The kernel's name of what paces this end's sending; `unknown` where it does not say.
    connections : Over how many this end spreads its data.
    round_trip_ms : Of the last answered ping, queues included; None before the first answer.
    rate_mbps : At which the peer has been taking data; None before any was sent.
    bytes_sent, bytes_received : Payload and framing, before encryption.
    latency_ms : One way, half of the least round trip of late; None before the first.
    incoming_mbps : What the line to here carries, packet headers included, seen in the traffic that came;
        None before enough did.
    """

    peer: Word
    path: Word
    remote: HostAndPort
    congestion_control: Word
    connections: Count
    round_trip_ms: float | None
    rate_mbps: float | None
    bytes_sent: Count
    bytes_received: Count
    latency_ms: float | None = None
    incoming_mbps: float | None = None


def status_of(link: Link) -> LinkStatus:
    """How a link does now, seen from here."""
    round_trip, rate = link.round_trip_seconds, link.bytes_per_second
    least, incoming = link.least_round_trip_seconds, link.incoming_bytes_per_second
    return LinkStatus(
        peer=link.peer.id,
        path=link.path,
        remote=link.remote,
        congestion_control=link.congestion_control,
        connections=link.connections,
        round_trip_ms=None if round_trip is None else round_trip * 1e3,
        rate_mbps=None if rate is None else rate * 8 / 1e6,
        bytes_sent=link.bytes_sent,
        bytes_received=link.bytes_received,
        latency_ms=None if least is None else least / 2 * 1e3,
        incoming_mbps=None if incoming is None else line_mbps(incoming),
    )

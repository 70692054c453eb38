"""How a link does, as commands and metrics show it."""

from __future__ import annotations

import msgspec


class LinkStatus(msgspec.Struct, frozen=True):
    """One end's view of one link.

    Attributes
    ----------
    peer : The other holder's id.
    remote : HOST:PORT of the other end.
    congestion_control : The kernel's name of what paces this end's sending; `unknown` where it does not say.
    round_trip_ms : Of the last answered ping, queues included; None before the first answer.
    rate_mbps : At which the peer has been taking data; None before any was sent.
    bytes_sent, bytes_received : Payload and framing, before encryption.
    """

    peer: str
    remote: str
    congestion_control: str
    round_trip_ms: float | None
    rate_mbps: float | None
    bytes_sent: int
    bytes_received: int

"""Statistics of a link: traffic, rates, and the distance of its peer."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from farflung.transport.link.inbox import Inbox
from farflung.transport.link.ranges import Part
from farflung.transport.link.rate_estimator import ReceiveRate, line_mbps
from farflung.transport.net.sockets import PathState, path_state
from farflung.transport.striping.stripe_set import StripeSet
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import Count, DataHeader, Receipt

if TYPE_CHECKING:
    from farflung.transport.link.link import Link

_UNKNOWN_SECONDS = 1000.0
"""A kernel's least round trip above this means that it has seen no acknowledgement yet."""

Word = Annotated[str, Meta(max_length=100)]
HostAndPort = Annotated[str, Meta(max_length=300)]


class LinkStats:
    """The read-only part of a link. `connection` is the primary stripe's socket.

    Attributes
    ----------
    path : The route: `direct`, `reverse` or `relay through NAME`.
    last_received_at : When the last bytes arrived (`time.monotonic`).
    bytes_received : Payload and framing, before encryption.
    round_trip_seconds : Of the last answered ping; None before the first answer.
    """

    def __init__(self, connection: socket.socket, stripes: StripeSet, timeouts: Timeouts) -> None:
        self.path = "direct"
        self.last_received_at = time.monotonic()
        self.bytes_received = 0
        self.round_trip_seconds: float | None = None
        self._socket = connection
        self._stripes = stripes
        self._timeouts = timeouts
        self._inbox: Inbox | None = None
        self._receive_rate = ReceiveRate()

    def on_bytes(self, count: int) -> None:
        """Record that bytes arrived; called by a stripe before it processes them."""
        self.bytes_received += count
        self.last_received_at = time.monotonic()
        if self._inbox is not None:
            self._receive_rate.on_bytes(count, self.last_received_at, self._inbox.awaits_more)

    def on_pong(self, stamp: float) -> None:
        """Record that a ping sent at `stamp` was answered."""
        # A peer that invents stamps only falsifies its own distance.
        self.round_trip_seconds = max(0.0, time.monotonic() - stamp)
        self._receive_rate.on_round_trip(self.round_trip_seconds)

    @property
    def receipt(self) -> Receipt:
        """What has completely arrived; final once the link is over."""
        return Receipt() if self._inbox is None else self._inbox.receipt

    @property
    def unfinished(self) -> list[DataHeader]:
        """Headers of the incomplete data messages that the handler allocated memory for."""
        return [] if self._inbox is None else self._inbox.unfinished

    @property
    def parts(self) -> list[Part]:
        """What has arrived of those; final once the link is over."""
        return [] if self._inbox is None else self._inbox.parts

    @property
    def connections(self) -> int:
        """Over how many open connections data is spread at the moment."""
        return self._stripes.connections

    @property
    def bytes_sent(self) -> int:
        """Payload and framing, before encryption."""
        return self._stripes.sender.bytes_sent

    @property
    def state_bytes_sent(self) -> int:
        """The part of `bytes_sent` that was state, with its framing."""
        return self._stripes.sender.state_bytes_sent

    @property
    def timeouts(self) -> Timeouts:
        """The limits of this link: the listener's, if its hello contained them."""
        return self._timeouts

    @property
    def messages_sent(self) -> int:
        """Control and data messages that have completely left."""
        return self._stripes.sender.messages_sent

    @property
    def messages_received(self) -> int:
        """Control and data messages that have completely arrived."""
        return 0 if self._inbox is None else self._inbox.messages

    @property
    def bytes_per_second(self) -> float | None:
        """The rate at which the peer reads data; None before it is known."""
        return self._stripes.sender.send_rate.bytes_per_second

    @property
    def incoming_bytes_per_second(self) -> float | None:
        """The rate of the path to here, measured on traffic; None before there was enough."""
        return self._receive_rate.bytes_per_second

    @property
    def recent_bytes_per_second(self) -> float | None:
        """The recent rate, from short messages too, so less certain; None before there were enough."""
        return self._receive_rate.recent_bytes_per_second

    @property
    def least_round_trip_seconds(self) -> float | None:
        """The recent minimum: the kernel's or, if it has none or only sees a relay, that of the last 60
        answered pings; None before the first.
        """
        state = self._kernel_state
        if state is not None and 0 < state.least_round_trip_seconds < _UNKNOWN_SECONDS:
            return state.least_round_trip_seconds
        return self._receive_rate.round_trip_seconds

    @property
    def resent(self) -> float | None:
        """The share of packets that were sent again; None if the kernel does not know it."""
        state = self._kernel_state
        if state is None or not state.delivered_packets:
            return None
        return state.retransmitted / (state.retransmitted + state.delivered_packets)

    @property
    def path_state(self) -> PathState | None:
        """The kernel's measurements of the path to the peer; None if it has none, behind a relay, and with
        several connections.
        """
        return self._kernel_state if self.connections == 1 else None

    @property
    def _kernel_state(self) -> PathState | None:
        """The kernel's measurements of the primary stripe's path; None if that ends at a relay."""
        return path_state(self._socket) if self.path in ("direct", "reverse") else None


class LinkStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One end's view of one link.

    Attributes
    ----------
    peer : The other holder's id.
    path : The route: `direct`, `reverse` or `relay through NAME`.
    remote : HOST:PORT of the other end, or of the relay.
    congestion_control : The kernel's name of the congestion control for what this end sends, or `unknown`.
    connections : Number of connections over which this end spreads its data.
    round_trip_ms : Of the last answered ping, queues included; None before the first answer.
    rate_mbps : Rate at which the peer reads data; None before any was sent.
    bytes_sent, bytes_received : Payload and framing, before encryption.
    latency_ms : One way: half of the recent least round trip; None before the first.
    incoming_mbps : Rate of the path to here, packet headers included, measured on traffic; None before there
        was enough.
    resent : Packets that this end had to send again because they were lost on the way, as a share of all that
        it sent; None where the kernel does not say, or behind a relay.
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
    resent: float | None = None


def status_of(link: Link) -> LinkStatus:
    """The link's current status, as this end sees it."""
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
        resent=link.resent,
    )

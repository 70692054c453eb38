"""What a link knows of itself: what came and went over it, how fast, and how far away its peer is."""

from __future__ import annotations

from farflung.transport.headers import DataHeader, Receipt
from farflung.transport.inbox import Inbox
from farflung.transport.parts import Part
from farflung.transport.sockets import PathState
from farflung.transport.spread import Spread
from farflung.transport.timeouts import Timeouts
from farflung.transport.vitals import Vitals


class Figures:
    """The part of a link that is only looked at.

    Attributes
    ----------
    path : How the two sides reach each other: `direct`, `reverse` or `relay through NAME`.
    """

    def __init__(self, vitals: Vitals, spread: Spread, timeouts: Timeouts) -> None:
        self.path = "direct"
        self._vitals = vitals
        self._spread = spread
        self._sender = spread.sender
        self._timeouts = timeouts
        self._inbox: Inbox | None = None

    @property
    def receipt(self) -> Receipt:
        """What has come whole; final once the link is over."""
        return Receipt() if self._inbox is None else self._inbox.receipt

    @property
    def unfinished(self) -> list[DataHeader]:
        """The data messages that the handler gave memory for and that have not come whole."""
        return [] if self._inbox is None else self._inbox.unfinished

    @property
    def parts(self) -> list[Part]:
        """What has come of those; final once the link is over."""
        return [] if self._inbox is None else self._inbox.parts

    @property
    def connections(self) -> int:
        """Over how many data is spread at the moment, of those that stand."""
        return self._spread.connections

    @property
    def last_heard(self) -> float:
        """When the last bytes came (`time.monotonic`)."""
        return self._vitals.last_heard

    @property
    def bytes_received(self) -> int:
        """Payload and framing, before encryption."""
        return self._vitals.bytes_received

    @property
    def round_trip_seconds(self) -> float | None:
        """Of the last answered ping; None before the first answer."""
        return self._vitals.round_trip_seconds

    @property
    def bytes_sent(self) -> int:
        """Payload and framing, before encryption."""
        return self._sender.bytes_sent

    @property
    def timeouts(self) -> Timeouts:
        """The limits that hold on it: the listener's, where its hello told them."""
        return self._timeouts

    @property
    def messages_sent(self) -> int:
        """Control and data messages that have left whole."""
        return self._sender.messages_sent

    @property
    def messages_received(self) -> int:
        """Control and data messages that have come whole."""
        return 0 if self._inbox is None else self._inbox.messages

    @property
    def bytes_per_second(self) -> float | None:
        """The rate at which the peer has been taking data; None before it is known."""
        return self._sender.pace.bytes_per_second

    @property
    def incoming_bytes_per_second(self) -> float | None:
        """What the path to here carries, seen in the traffic that came; None before enough did."""
        return self._vitals.incoming_bytes_per_second

    @property
    def recent_bytes_per_second(self) -> float | None:
        """What came of late, short messages too, which tell less; None before enough came."""
        return self._vitals.recent_bytes_per_second

    @property
    def least_round_trip_seconds(self) -> float | None:
        """The least of late: the kernel's word, or where it has none, or knows only the way to a relay, that
        of the last 60 answered pings; None before the first.
        """
        return self._vitals.least_round_trip_seconds(self._kernel_sees_peer)

    @property
    def path_state(self) -> PathState | None:
        """What the kernel knows of the way to the peer; None where it does not say, behind a relay, and where
        data goes over several connections.
        """
        return self._vitals.path_state(self._kernel_sees_peer) if self.connections == 1 else None

    @property
    def _kernel_sees_peer(self) -> bool:
        return self.path in ("direct", "reverse")

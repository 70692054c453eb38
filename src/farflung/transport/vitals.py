"""What a link learns about itself and its path: when it was heard, how much came, how long the way is."""

from __future__ import annotations

import socket
import time

from farflung.transport.capacity import Capacity
from farflung.transport.sockets import PathState, path_state

_UNKNOWN_SECONDS = 1000.0
"""Above this a kernel's least round trip is none: it has seen no acknowledgement yet."""


class Vitals:
    """See `Link` for what the attributes mean; `connection` is the first one's socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.last_heard = time.monotonic()
        self.bytes_received = 0
        self.round_trip_seconds: float | None = None
        self._socket = connection
        self._capacity = Capacity()

    def heard(self, count: int, awaits_more: bool | None) -> None:
        """So many bytes came; `awaits_more`: the rest of some message was missing. None before a greeting."""
        self.bytes_received += count
        self.last_heard = time.monotonic()
        if awaits_more is not None:
            self._capacity.came(count, self.last_heard, awaits_more)

    def answered(self, stamp: float) -> None:
        """A ping that was sent at `stamp` was answered."""
        # A peer that makes stamps up only deceives itself about its distance.
        self.round_trip_seconds = max(0.0, time.monotonic() - stamp)
        self._capacity.answered(self.round_trip_seconds)

    def least_round_trip_seconds(self, kernel_sees_peer: bool) -> float | None:
        """See `Link.least_round_trip_seconds`; the kernel does not see the peer behind a relay."""
        state = self.path_state(kernel_sees_peer)
        if state is not None and 0 < state.least_round_trip_seconds < _UNKNOWN_SECONDS:
            return state.least_round_trip_seconds
        return self._capacity.round_trip_seconds

    def path_state(self, kernel_sees_peer: bool) -> PathState | None:
        """What the kernel knows of the way to the peer; None where it does not, or not of the whole way."""
        return path_state(self._socket) if kernel_sees_peer else None

    @property
    def incoming_bytes_per_second(self) -> float | None:
        """What the path to here carries; None before enough came."""
        return self._capacity.bytes_per_second

    @property
    def recent_bytes_per_second(self) -> float | None:
        """What came of late, short messages too; None before enough came."""
        return self._capacity.recent_bytes_per_second

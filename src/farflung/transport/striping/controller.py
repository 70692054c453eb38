"""Over how many connections a link spreads its data, learnt from what more of them bring. No clock here."""

from __future__ import annotations

from collections.abc import Callable

from farflung.transport.net.sockets import PathState

MAXIMUM_CONNECTIONS = 16
"""Of one link."""

_MEASURE_SECONDS = 1.0
_SETTLE_SECONDS = 0.5
_STEP = 4
_LEAST_GAIN = 1.2
_PATIENCE = 16
_QUEUE_GROWTH = 1.25
_QUEUE_SECONDS = 0.005

_LEAVES_ROOM = ("bbr",)


def fills_alone(congestion_control: str) -> bool:
    """Whether one connection under it fills a path on which packets get lost.

    Loss-based ones do not: Reno's rate falls with the root of the loss (RFC 5348), and cubic's is little
    better at home distances.
    """
    return congestion_control.startswith(_LEAVES_ROOM)


def is_full(path: PathState | None) -> bool:
    """Whether more connections could not get more out of a path: packets queue, or none were lost."""
    if path is None:
        return False
    queues = path.round_trip_seconds > _QUEUE_GROWTH * path.least_round_trip_seconds + _QUEUE_SECONDS
    return queues or not path.retransmitted


class StripeController:
    """Goes from 1 to 4 to 16 connections as long as that makes a busy link 1.2 times faster, else steps back.

    A step is that long because what one connection carries under loss swings by half from second to second.

    After a step back it waits for twice as long as the time before until it tries again, because links
    change. Only busy time counts: what a link carries when there is little to send says nothing.

    Parameters
    ----------
    first, most
        How many connections to begin with, and how many there may be.
    path
        Gives the state of the first connection's path: one that is full is not worth a try.

    Attributes
    ----------
    wanted : How many connections to use.
    is_fixed : Whether that never changes, so that there is nothing to learn.
    """

    def __init__(
        self,
        first: int = 1,
        most: int = MAXIMUM_CONNECTIONS,
        path: Callable[[], PathState | None] = lambda: None,
    ) -> None:
        self.wanted = first
        self._most = most
        self._path = path
        self.is_fixed = first == most
        self._best = 0.0
        self._is_open = True
        self._settling = _SETTLE_SECONDS
        self._patience = _PATIENCE * _MEASURE_SECONDS
        self._seconds = 0.0
        self._bytes = 0
        self._last: float | None = None

    def opened(self, count: int) -> None:
        """There are now `count` connections; what is measured before all that are wanted stand is void."""
        if not self._is_open and count >= self.wanted:
            self._is_open = True
            self._begin(_SETTLE_SECONDS)

    def idle(self) -> None:
        """There was nothing to send."""
        self._last = None

    def taken(self, count: int, now: float) -> bool:
        """The peer took `count` more bytes; True if another number of connections is wanted from now on."""
        last, self._last = self._last, now
        if last is None or not self._is_open or self.is_fixed:
            return False
        elapsed = now - last
        if self._settling > 0:
            self._settling -= elapsed
            return False
        self._seconds += elapsed
        self._bytes += count
        if self._seconds < _MEASURE_SECONDS:
            return False
        return self._judge(self._bytes / self._seconds)

    def _judge(self, rate: float) -> bool:
        before = self.wanted
        if rate < self._best * _LEAST_GAIN:
            self.wanted //= _STEP
            self._best = 0.0
            self._begin(self._patience)
            self._patience *= 2
        elif self.wanted < self._most and is_full(self._path()):
            self._best = 0.0
            self._begin(0.0)
        else:
            self._best = rate
            self.wanted = min(_STEP * self.wanted, self._most)
            self._begin(_SETTLE_SECONDS)
            if self.wanted == before:
                self._best = 0.0
            else:
                self._is_open = False
        return self.wanted != before

    def _begin(self, settling: float) -> None:
        self._settling, self._seconds, self._bytes = settling, 0.0, 0

"""Decides how many connections carry a link's data, by measuring what more of them gain. Pure."""

from __future__ import annotations

from collections.abc import Callable

from farflung.transport.net.sockets import PathState

MAXIMUM_CONNECTIONS = 16
"""Limit on the connections of one link."""

_MEASURE_SECONDS = 1.0
_SETTLE_SECONDS = 0.5
_STEP = 4
_LEAST_GAIN = 1.2
_PATIENCE = 16
_QUEUE_GROWTH = 1.25
_QUEUE_SECONDS = 0.005

_LEAVES_ROOM = ("bbr",)


def fills_alone(congestion_control: str) -> bool:
    """Whether one connection under this congestion control fills a lossy path.

    Loss-based ones do not: Reno's rate falls with the root of the loss (RFC 5348), and cubic is little better
    at the round trips between homes.
    """
    return congestion_control.startswith(_LEAVES_ROOM)


def is_full(path: PathState | None) -> bool:
    """Whether more connections would not make a path faster: its packets queue, or none were lost."""
    if path is None:
        return False
    queues = path.round_trip_seconds > _QUEUE_GROWTH * path.least_round_trip_seconds + _QUEUE_SECONDS
    return queues or not path.retransmitted


class StripeController:
    """Goes from 1 to 4 to 16 connections while each step makes a busy link 1.2 times faster, else steps back.

    Steps are large because the rate of one connection under loss varies by half from second to second.

    After each step back it waits twice as long as before until it tries again, because links change. Only
    busy time counts: an almost idle link shows nothing about its rate.

    Parameters
    ----------
    first, most
        The initial and the largest number of connections.
    path
        Returns the state of the first connection's path. If that is full, more connections are not tried.

    Attributes
    ----------
    wanted : How many connections to use.
    is_fixed : Whether `wanted` never changes, so that nothing needs measuring.
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

    def on_opened(self, count: int) -> None:
        """There are now `count` connections; measurements count only once all that are wanted are open."""
        if not self._is_open and count >= self.wanted:
            self._is_open = True
            self._begin(_SETTLE_SECONDS)

    def on_idle(self) -> None:
        """There is nothing to send."""
        self._last = None

    def on_ack(self, count: int, now: float) -> bool:
        """The peer has read `count` more bytes; returns True if `wanted` changes."""
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

"""A link's pulse: says when to ping, and when the peer has been silent for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farflung.transport.timeouts import Timeouts


class Heartbeat:
    """Counts beats without a sign of life, not seconds: after this process itself was stopped for a while
    (a laptop's lid) bytes that wait in the socket are read before the peer is declared silent.
    """

    def __init__(self, timeouts: Timeouts, beat: Callable[[], None], silent: Callable[[], None]) -> None:
        self._interval = timeouts.heartbeat_seconds
        self._limit = round(timeouts.silence_seconds / timeouts.heartbeat_seconds)
        self._beat = beat
        self._silent = silent
        self._beats_in_silence = 0
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def heard(self) -> None:
        """The peer is alive."""
        self._beats_in_silence = 0

    def stop(self) -> None:
        """No more beats."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._beats_in_silence += 1
        if self._beats_in_silence >= self._limit:
            self._silent()
            return
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)
        self._beat()

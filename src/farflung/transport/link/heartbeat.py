"""A link's heartbeat: when to ping, and when the peer has been silent for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farflung.transport.timeouts import Timeouts


class Heartbeat:
    """Counts beats during which `received`, the number of bytes so far, did not grow.

    It counts beats, not seconds: after this process was suspended (a laptop's closed lid), bytes that wait in
    the socket are read before the peer counts as silent.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        received: Callable[[], int],
        beat: Callable[[], None],
        silent: Callable[[], None],
    ) -> None:
        self._interval = timeouts.heartbeat_seconds
        self._limit = round(timeouts.silence_seconds / timeouts.heartbeat_seconds)
        self._received = received
        self._received_before = received()
        self._beat = beat
        self._silent = silent
        self._beats_in_silence = 0
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def stop(self) -> None:
        """Stop beating."""
        self._timer.cancel()

    def _tick(self) -> None:
        received = self._received()
        self._beats_in_silence = 1 if received != self._received_before else self._beats_in_silence + 1
        self._received_before = received
        if self._beats_in_silence >= self._limit:
            self._silent()
            return
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)
        self._beat()

"""When a connection begins to send much after a pause. No clock here."""

from __future__ import annotations

from farflung.transport.pace import MINIMUM_CHUNK_BYTES
from farflung.transport.timeouts import BURST_PAUSE_SECONDS, FRESH_START_SECONDS, HOLD_BACK_SECONDS

MARGIN = 1.25
"""By how much a fresh start may exceed the rate that is known, which leaves headers out."""


class Bursts:
    """Notices the first chunk after a pause, and lets it be a fresh start for the congestion control.

    BBR looks for the path's shortest round trip every 10 s, and sends next to nothing for 200 ms and more
    while it does. A training step has its links idle for part of its time, but that look comes when it comes:
    in a pipeline the halts of all hops add up. Whoever begins anew at the start of a burst looks 10 s later.
    It would also try out how fast the path is, at nearly three times the rate, and fill a home's queue: so
    it is held to little more than the rate that is known until it has seen that for itself.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._started: float | None = None
        self._is_held_back = False

    def begins(self, data_bytes: int, now: float) -> bool:
        """Data is written at `now`; true if a fresh start is due before it. Less than a chunk is no burst."""
        if data_bytes < MINIMUM_CHUNK_BYTES:
            return False
        last, self._last = self._last, now
        if last is None or now - last < BURST_PAUSE_SECONDS:
            return False
        if self._started is not None and now - self._started < FRESH_START_SECONDS:
            return False
        self._started = now
        self._is_held_back = True
        return True

    def may_go(self, now: float) -> bool:
        """True, once, when the rate need not be held back any more."""
        if not self._is_held_back or self._started is None or now - self._started < HOLD_BACK_SECONDS:
            return False
        self._is_held_back = False
        return True

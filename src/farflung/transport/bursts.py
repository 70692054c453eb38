"""When a connection begins to send much after a pause. No clock here."""

from __future__ import annotations

from farflung.transport.pace import MINIMUM_CHUNK_BYTES
from farflung.transport.timeouts import BURST_PAUSE_SECONDS, HOLD_BACK_SECONDS, LONG_BURST_SECONDS


class Bursts:
    """Notices the first chunk after a pause, and lets it be a fresh start for the congestion control.

    BBR looks for the path's shortest round trip every 10 s, and sends next to nothing for 200 ms and more
    while it does. A training step has its links idle for part of its time, but that look comes when it comes:
    in a pipeline the halts of all hops add up. Whoever begins anew at the start of a burst looks 10 s later.

    A fresh start is only due where the last burst was long and kept the path full. BBR tries out how fast the
    path is until it has been full for a while: where the sender has too little to send that never ends, and
    every message overflows a home's queue. For the same reason its rate is held to little more than what is
    known until it has found its own.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0
        self._bytes = 0
        self._held_back_at: float | None = None

    def begins(self, data_bytes: int, now: float) -> float | None:
        """Data is written at `now`: if a burst begins and the last was long, the bytes a second of that."""
        if data_bytes < MINIMUM_CHUNK_BYTES:
            return None
        if self._first is not None and now - self._last < BURST_PAUSE_SECONDS:
            self._last, self._bytes = now, self._bytes + data_bytes
            return None
        seconds = 0.0 if self._first is None else self._last - self._first
        rate = self._bytes / seconds if seconds >= LONG_BURST_SECONDS else None
        self._first, self._last, self._bytes = now, now, data_bytes
        return rate

    def may_go(self, now: float) -> bool:
        """True, once, when the rate has been held back for long enough."""
        if self._held_back_at is None or now - self._held_back_at < HOLD_BACK_SECONDS:
            return False
        self._held_back_at = None
        return True

    def hold_back(self, now: float) -> None:
        """It is held back from `now` on."""
        self._held_back_at = now

"""A link's rate, learnt from the credits that come back, and the size of chunk that follows from it."""

from __future__ import annotations

from farflung.transport.frames import MAXIMUM_CHUNK_BYTES
from farflung.transport.timeouts import CHUNK_SECONDS

MINIMUM_CHUNK_BYTES = 16 * 1024
_FIRST_CHUNK_BYTES = 64 * 1024
_SHORTEST_SAMPLE_SECONDS = CHUNK_SECONDS
_WEIGHT = 0.25


class Pace:
    """Bytes per second that the receiver takes. A sample in which the sender had nothing to send may raise
    the estimate but not lower it (as BBR treats application-limited samples, RFC draft-cardwell-iccrg-bbr).
    """

    def __init__(self) -> None:
        self.bytes_per_second: float | None = None
        self._taken = 0
        self._since: float | None = None
        self._was_idle = False

    def unsent_bytes(self, share: int = 1) -> int:
        """What one of `share` connections carries in 20 ms: so much may wait where nothing overtakes it."""
        if self.bytes_per_second is None:
            return _FIRST_CHUNK_BYTES
        return max(int(self.bytes_per_second * CHUNK_SECONDS / share), MINIMUM_CHUNK_BYTES)

    def chunk_bytes(self, share: int = 1) -> int:
        """The same, but at most 1 MiB."""
        return min(self.unsent_bytes(share), MAXIMUM_CHUNK_BYTES)

    def sent(self, now: float) -> None:
        """Data has left; the clock starts with the first."""
        if self._since is None:
            self._since = now

    def idle(self) -> None:
        """There is nothing more to send."""
        self._was_idle = True

    def taken(self, count: int, now: float) -> None:
        """The receiver has taken `count` more bytes."""
        if self._since is None:
            return
        self._taken += count
        elapsed = now - self._since
        if elapsed < _SHORTEST_SAMPLE_SECONDS:
            return
        rate, known = self._taken / elapsed, self.bytes_per_second
        if known is None or rate > known:
            self.bytes_per_second = rate
        elif not self._was_idle:
            self.bytes_per_second = known + _WEIGHT * (rate - known)
        self._taken, self._since, self._was_idle = 0, now, False

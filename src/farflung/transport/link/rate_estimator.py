"""Rates learnt from the traffic: how fast a peer takes what is sent, and what the path to here carries.

No sockets and no clock here.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from farflung.transport.timeouts import CHUNK_SECONDS
from farflung.transport.wire.frames import MAXIMUM_CHUNK_BYTES

MINIMUM_CHUNK_BYTES = 16 * 1024
_FIRST_CHUNK_BYTES = 64 * 1024
_SHORTEST_SAMPLE_SECONDS = CHUNK_SECONDS
_WEIGHT = 0.25

PAYLOAD_SHARE = 1448 / 1500
"""Of a line's rate, what is left for payload after IPv4 and TCP headers (with timestamps) of full packets."""

_STALL_INTERVALS = 3

_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.05, 1.0
_STALL_SECONDS = 0.05
_MERGED_SECONDS = 0.001
_KEPT_STRETCHES = 16
_KEPT_ROUND_TRIPS = 60
_KEPT_RECENT, _ENOUGH_RECENT = 8, 4
_SHORT_BYTES, _SHORT_SECONDS = 16384, 0.002
"""What a message must bring after its first bytes, and for how long, to tell anything."""
_FEW_BYTES, _SLOW_SECONDS = 1024, 0.01
"""Less than that tells something, too, where it takes so long: a message of a few packets comes at once, but
on a path that has become slow. (Below 14 KB, which any connection sends without waiting for an answer.)"""


class SendRate:
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


@dataclass(frozen=True, slots=True)
class Arrival:
    """After `seconds` on the receiver's clock, `total_bytes` of the stream had come."""

    seconds: float
    total_bytes: int


def fastest(arrivals: Sequence[Arrival], window_seconds: float, stall_seconds: float) -> float | None:
    """The highest rate, in bytes a second, that was held for `window_seconds`; None if none was so long.

    A stream that has just begun, or had nothing to send for a while, comes more slowly than the path could
    carry it, never faster: so the highest rate is the path's. Only behind a lost packet do bytes pile up,
    unseen, and then come at once; so after a stall (see `stalls`) no window begins for as long as it was.
    """
    best: float | None = None
    starts = _starts(arrivals, stall_seconds)
    current = 0
    for last in arrivals:
        while current + 1 < len(starts) and last.seconds - starts[current + 1].seconds >= window_seconds:
            current += 1
        elapsed = last.seconds - starts[current].seconds
        if elapsed > 0 and elapsed >= window_seconds:
            rate = (last.total_bytes - starts[current].total_bytes) / elapsed
            best = rate if best is None else max(best, rate)
    return best


def stalls(arrivals: Sequence[Arrival], stall_seconds: float) -> list[tuple[Arrival, Arrival]]:
    """The last arrival before and the first after each time in which nothing came for `stall_seconds`.

    A path so slow that single messages take as long is not stalled.
    """
    pairs = list(itertools.pairwise(arrivals))
    if not pairs:
        return []
    usual = statistics.median(after.seconds - before.seconds for before, after in pairs)
    limit = max(stall_seconds, _STALL_INTERVALS * usual)
    return [(before, after) for before, after in pairs if after.seconds - before.seconds > limit]


def line_mbps(payload_bytes_per_second: float) -> float:
    """The rate of a line, in Mbit/s as lines are sold, that carries so much payload."""
    return payload_bytes_per_second * 8 / 1e6 / PAYLOAD_SHARE


def _starts(arrivals: Sequence[Arrival], stall_seconds: float) -> list[Arrival]:
    starts = list(arrivals)
    for before, after in stalls(arrivals, stall_seconds):
        calm = after.seconds + (after.seconds - before.seconds)
        starts = [one for one in starts if not after.seconds <= one.seconds < calm]
    return starts


class ReceiveRate:
    """Learns from a link's own arrivals, of data that was ready to be sent.

    While a message has begun to come and is not whole, the sender has more to send, and what holds it up is
    the path. So only such stretches count, and gaps between a step's messages do not. A stretch is at most a
    second; one that is shorter than 50 ms tells nothing. Of the last 16 stretches the upper quartile counts,
    because a connection that was idle begins slowly, and none goes faster than its path.
    """

    def __init__(self) -> None:
        self._stretch: list[Arrival] = []
        self._total_bytes = 0
        self._rates: deque[float] = deque(maxlen=_KEPT_STRETCHES)
        self._recent: deque[float] = deque(maxlen=_KEPT_RECENT)
        self._round_trips: deque[float] = deque(maxlen=_KEPT_ROUND_TRIPS)

    def came(self, count: int, now: float, was_due: bool) -> None:
        """So many bytes came; `was_due`: until then the rest of some message was missing."""
        if not was_due:
            self._finish()
        self._total_bytes += count
        arrival = Arrival(now, self._total_bytes)
        # A path's packets are read one by one or many together; within a millisecond that tells nothing.
        if len(self._stretch) > 1 and now - self._stretch[-2].seconds < _MERGED_SECONDS:
            self._stretch[-1] = arrival
        else:
            self._stretch.append(arrival)
        if now - self._stretch[0].seconds >= _LONGEST_SECONDS:
            self._finish()
            self._stretch.append(arrival)

    def answered(self, round_trip_seconds: float) -> None:
        """A ping's answer took so long."""
        self._round_trips.append(round_trip_seconds)

    @property
    def bytes_per_second(self) -> float | None:
        """What the path to here carries; None before the first stretch that is long enough."""
        if len(self._rates) < 2:
            return self._rates[0] if self._rates else None
        return statistics.quantiles(self._rates, n=4, method="inclusive")[2]

    @property
    def recent_bytes_per_second(self) -> float | None:
        """What came of late, short messages too: the median of the last 8 stretches; None before there are 4.

        A message that is through in a few milliseconds tells little, for what waited to be read comes at
        once; but where all are so short nothing else says that a path became faster. Few bytes tell nothing
        while they come fast, and how slow a path is once they do not.
        """
        return statistics.median(self._recent) if len(self._recent) >= _ENOUGH_RECENT else None

    @property
    def round_trip_seconds(self) -> float | None:
        """The least of the last 60; None before the first."""
        return min(self._round_trips, default=None)

    def _finish(self) -> None:
        stretch, self._stretch = self._stretch, []
        if not stretch:
            return
        window = max((stretch[-1].seconds - stretch[0].seconds) / 2, _SHORTEST_SECONDS)
        rate = fastest(stretch, window, _STALL_SECONDS)
        if rate is not None:
            self._rates.append(rate)
            self._recent.append(rate)
            return
        seconds = stretch[-1].seconds - stretch[0].seconds
        count = stretch[-1].total_bytes - stretch[0].total_bytes
        least = _FEW_BYTES if seconds >= _SLOW_SECONDS else _SHORT_BYTES
        if seconds >= _SHORT_SECONDS and count >= least:
            self._recent.append(count / seconds)

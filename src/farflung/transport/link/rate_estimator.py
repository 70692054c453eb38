"""Rates measured on passing traffic: how fast a peer reads what is sent, and what the path to here carries.

Pure: no sockets and no clock.
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
"""Share of a line's rate that is left for payload after the IPv4 and TCP headers (with timestamps) of full
packets.
"""

_STALL_INTERVALS = 3

_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.05, 1.0
_STALL_SECONDS = 0.05
_MERGED_SECONDS = 0.001
_STRETCHES = 16
_ROUND_TRIPS = 60
_RECENT_STRETCHES, _LEAST_RECENT_STRETCHES = 8, 4
_SHORT_BYTES, _SHORT_SECONDS = 16384, 0.002
"""The least that a message must bring after its first bytes, and for how long, to count as a sample."""
_FEW_BYTES, _SLOW_SECONDS = 1024, 0.01
"""Fewer bytes also count if they take this long: a message of a few packets arrives at once unless the path
has become slow. (Below 14 KB, which any connection sends without waiting for an answer.)
"""


class SendRate:
    """Bytes per second that the receiver reads.

    A sample during which the sender had nothing to send may raise the estimate but not lower it (as BBR
    treats application-limited samples, RFC draft-cardwell-iccrg-bbr).
    """

    def __init__(self) -> None:
        self.bytes_per_second: float | None = None
        self._acked_bytes = 0
        self._since: float | None = None
        self._was_idle = False

    def unsent_bytes(self, share: int = 1) -> int:
        """Bytes that one of `share` connections carries in 20 ms: the most that may wait in the kernel."""
        if self.bytes_per_second is None:
            return _FIRST_CHUNK_BYTES
        return max(int(self.bytes_per_second * CHUNK_SECONDS / share), MINIMUM_CHUNK_BYTES)

    def chunk_bytes(self, share: int = 1) -> int:
        """The same, but at most 1 MiB."""
        return min(self.unsent_bytes(share), MAXIMUM_CHUNK_BYTES)

    def on_sent(self, now: float) -> None:
        """Data has left; the first time starts the clock."""
        if self._since is None:
            self._since = now

    def on_idle(self) -> None:
        """There is nothing more to send."""
        self._was_idle = True

    def on_ack(self, count: int, now: float) -> None:
        """The receiver has read `count` more bytes."""
        if self._since is None:
            return
        self._acked_bytes += count
        elapsed = now - self._since
        if elapsed < _SHORTEST_SAMPLE_SECONDS:
            return
        rate, known = self._acked_bytes / elapsed, self.bytes_per_second
        if known is None or rate > known:
            self.bytes_per_second = rate
        elif not self._was_idle:
            self.bytes_per_second = known + _WEIGHT * (rate - known)
        self._acked_bytes, self._since, self._was_idle = 0, now, False


@dataclass(frozen=True, slots=True)
class Arrival:
    """After `seconds` on the receiver's clock, `total_bytes` of the stream had arrived."""

    seconds: float
    total_bytes: int


def fastest(arrivals: Sequence[Arrival], window_seconds: float, stall_seconds: float) -> float | None:
    """The highest rate, in bytes per second, over any `window_seconds`; None if the stream was shorter.

    A stream that has just begun, or had nothing to send for a while, is slower than the path, never faster,
    so the highest rate is the path's. But behind a lost packet bytes pile up unseen and then arrive at once,
    so no window begins after a stall (see `stalls`) for as long as it lasted.
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
    """The last arrival before and the first after each gap of more than `stall_seconds`.

    A path on which single messages take that long is slow, not stalled.
    """
    pairs = list(itertools.pairwise(arrivals))
    if not pairs:
        return []
    usual = statistics.median(after.seconds - before.seconds for before, after in pairs)
    limit = max(stall_seconds, _STALL_INTERVALS * usual)
    return [(before, after) for before, after in pairs if after.seconds - before.seconds > limit]


def line_mbps(payload_bytes_per_second: float) -> float:
    """The rate of a line that carries this much payload, in Mbit/s as lines are sold."""
    return payload_bytes_per_second * 8 / 1e6 / PAYLOAD_SHARE


def _starts(arrivals: Sequence[Arrival], stall_seconds: float) -> list[Arrival]:
    starts = list(arrivals)
    for before, after in stalls(arrivals, stall_seconds):
        calm = after.seconds + (after.seconds - before.seconds)
        starts = [one for one in starts if not after.seconds <= one.seconds < calm]
    return starts


class ReceiveRate:
    """Measures the path from arrivals of data that was ready to be sent.

    While a message is incomplete, its sender has more to send, and the path limits the rate. So only such
    stretches count, and pauses between a step's messages do not. A stretch is at most a second; shorter ones
    than 50 ms are ignored. The estimate is the upper quartile of the last 16 stretches, because an idle
    connection starts slowly, and none is faster than its path.
    """

    def __init__(self) -> None:
        self._stretch: list[Arrival] = []
        self._total_bytes = 0
        self._rates: deque[float] = deque(maxlen=_STRETCHES)
        self._recent: deque[float] = deque(maxlen=_RECENT_STRETCHES)
        self._round_trips: deque[float] = deque(maxlen=_ROUND_TRIPS)

    def on_bytes(self, count: int, now: float, was_due: bool) -> None:
        """`count` bytes arrived; `was_due`: some message was incomplete before."""
        if not was_due:
            self._finish()
        self._total_bytes += count
        arrival = Arrival(now, self._total_bytes)
        # Packets are read singly or many together; differences below a millisecond mean nothing.
        if len(self._stretch) > 1 and now - self._stretch[-2].seconds < _MERGED_SECONDS:
            self._stretch[-1] = arrival
        else:
            self._stretch.append(arrival)
        if now - self._stretch[0].seconds >= _LONGEST_SECONDS:
            self._finish()
            self._stretch.append(arrival)

    def on_round_trip(self, round_trip_seconds: float) -> None:
        """A ping was answered after this long."""
        self._round_trips.append(round_trip_seconds)

    @property
    def bytes_per_second(self) -> float | None:
        """The rate of the path to here; None before the first stretch that is long enough."""
        if len(self._rates) < 2:
            return self._rates[0] if self._rates else None
        return statistics.quantiles(self._rates, n=4, method="inclusive")[2]

    @property
    def recent_bytes_per_second(self) -> float | None:
        """The median rate of the last 8 stretches, short messages included; None before there are 4.

        A message that takes a few milliseconds shows little, because bytes that waited to be read arrive at
        once. But if all messages are that short, nothing else shows that a path became faster. A few bytes
        count only if they arrive slowly.
        """
        return statistics.median(self._recent) if len(self._recent) >= _LEAST_RECENT_STRETCHES else None

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

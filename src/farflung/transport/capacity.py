"""What a path carries and how long it is, seen in the traffic that crosses it anyway. No clock here."""

from __future__ import annotations

import statistics
from collections import deque

from farflung.transport.arrivals import Arrival, fastest

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


class Capacity:
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

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

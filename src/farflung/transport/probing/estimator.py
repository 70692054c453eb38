"""From what a probe hears, in order, to what it has found out. No sockets and no clock here."""

from __future__ import annotations

import math

from farflung.errors import ProtocolError
from farflung.transport.link.rate_estimator import Arrival, fastest, stalls

_SHORT_WINDOW_SECONDS, _WINDOW_SECONDS, _LONG_WINDOW_SECONDS = 0.1, 0.2, 0.8
_LOSSY_WINDOW_SECONDS = 0.4
_SHORTER_SECONDS = (0.05, 0.02)  # of a probe that had sent all it may so soon
_CALM_SECONDS, _CALM_ROUND_TRIPS = 0.3, 2
_SHORTEST_STALL_SECONDS = 0.02
_BEGINNING_SECONDS, _BEGINNING_ROUND_TRIPS = 0.3, 5
_SETTLED_GROWTH = 1.02
_RECENT_REPORTS = 8
_PACKETS_WRAP = 2**32  # of the counter in the kernel


class ProbeEstimator:
    """Told round trips and arrivals, it says how long the path is and what it carries."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.answers = 0
        self.round_trip_seconds = math.inf
        self._acknowledged: list[Arrival] = []
        self._packets = self._packet_bytes = 0
        self._resent: list[int] = []

    def answered(self, seconds: float) -> None:
        """A question's answer took so long."""
        self.answers += 1
        self.round_trip_seconds = min(self.round_trip_seconds, max(seconds, 0.0))

    def arrived(self, arrival: Arrival) -> None:
        """The other side reports; ProtocolError if it contradicts what it said before."""
        if self.arrivals:
            last = self.arrivals[-1]
            if arrival.seconds <= last.seconds or arrival.total_bytes <= last.total_bytes:
                raise ProtocolError("expected a probe's arrivals in order, found one that goes back in time")
        self.arrivals.append(arrival)

    def acknowledged(self, seconds: float, packets: int, packet_bytes: int, resent: int) -> None:
        """The sender's kernel says at `seconds` how many packets the other has acknowledged so far, how much
        each holds now, and how many were sent again.

        Packets count with the size that they had: one that changed on the way changes nothing before it.
        """
        if not self._acknowledged:
            self._acknowledged.append(Arrival(seconds, packets * packet_bytes))
        else:
            size = min(packet_bytes, self._packet_bytes)  # of those that were under way meanwhile, who knows
            came = (packets - self._packets) % _PACKETS_WRAP * size
            self._acknowledged.append(Arrival(seconds, self._acknowledged[-1].total_bytes + came))
        self._packets, self._packet_bytes = packets, packet_bytes
        self._resent.append(resent)

    @property
    def bytes_per_second(self) -> float | None:
        """The path's rate, as far as is known; None before two arrivals.

        A rate that still grows shows best in a short window; one that stalls evens out only in a long one.
        Where packets were lost the kernel knows better: it counts what came behind a gap when it came.
        """
        if not self.arrivals:
            return None
        if self._resent and self._resent[-1] > self._resent[0]:
            windows = [_LONG_WINDOW_SECONDS, _LOSSY_WINDOW_SECONDS, _WINDOW_SECONDS]
            rates = (fastest(self._acknowledged, window, math.inf) for window in windows)
            if rate := next(filter(None, rates), None):
                return rate
        if self._has_stalled:
            windows = [_LONG_WINDOW_SECONDS, _WINDOW_SECONDS]
        else:
            windows = [_WINDOW_SECONDS if self.is_settled else _SHORT_WINDOW_SECONDS, *_SHORTER_SECONDS]
        windows.append(self.arrivals[-1].seconds - self.arrivals[0].seconds)  # all, where that is shorter
        return next(filter(None, (self._fastest(self.arrivals, window) for window in windows)), None)

    @property
    def recent_bytes_per_second(self) -> float:
        """The rate of the last few reports."""
        recent = self.arrivals[-_RECENT_REPORTS:]
        if len(recent) < 2:
            return 0.0
        return (recent[-1].total_bytes - recent[0].total_bytes) / (recent[-1].seconds - recent[0].seconds)

    @property
    def total_bytes(self) -> int:
        """How much has come in all."""
        return self.arrivals[-1].total_bytes if self.arrivals else 0

    @property
    def is_settled(self) -> bool:
        """Whether the last few round trips have brought no stall and nothing faster to light."""
        calm = max(_CALM_SECONDS, _CALM_ROUND_TRIPS * self.round_trip_seconds)
        if not self.arrivals or not math.isfinite(calm) or self._has_stalled:
            return False
        earlier = [one for one in self.arrivals if one.seconds <= self.arrivals[-1].seconds - calm]
        before = self._fastest(earlier, _WINDOW_SECONDS)
        now = self._fastest(self.arrivals, _WINDOW_SECONDS)
        return before is not None and now is not None and now <= before * _SETTLED_GROWTH

    @property
    def _has_stalled(self) -> bool:
        # A connection that has just begun waits for acknowledgements, not for lost packets.
        begun = self.arrivals[0].seconds + max(
            _BEGINNING_SECONDS, _BEGINNING_ROUND_TRIPS * self.round_trip_seconds
        )
        return any(after.seconds > begun for _, after in stalls(self.arrivals, self._stall_seconds))

    @property
    def _stall_seconds(self) -> float:
        # It takes a round trip to send a lost packet again.
        return max(_SHORTEST_STALL_SECONDS, self.round_trip_seconds / 2)

    def _fastest(self, arrivals: list[Arrival], window_seconds: float) -> float | None:
        return fastest(arrivals, window_seconds, self._stall_seconds)

"""Turns a probe's observations, in order, into an estimate of its path. Pure: no sockets and no clock."""

from __future__ import annotations

import math

from farflung.errors import ProtocolError
from farflung.transport.link.rate_estimator import Arrival, fastest, stalls

_SHORT_WINDOW_SECONDS, _WINDOW_SECONDS, _LONG_WINDOW_SECONDS = 0.1, 0.2, 0.8
_LOSSY_WINDOW_SECONDS = 0.4
_SHORTER_SECONDS = (0.05, 0.02)  # for a probe that reached its byte limit very early
_CALM_SECONDS, _CALM_ROUND_TRIPS = 0.3, 2
_SHORTEST_STALL_SECONDS = 0.02
_BEGINNING_SECONDS, _BEGINNING_ROUND_TRIPS = 0.3, 5
_SETTLED_GROWTH = 1.02
_RECENT_REPORTS = 8
_PACKETS_WRAP = 2**32  # of the counter in the kernel


class ProbeEstimator:
    """Estimates a path's round trip and rate from answers and arrivals."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.answers = 0
        self.round_trip_seconds = math.inf
        self._acknowledged: list[Arrival] = []
        self._packets = self._packet_bytes = 0
        self._resent: list[int] = []

    def on_round_trip(self, seconds: float) -> None:
        """A question was answered after this long."""
        self.answers += 1
        self.round_trip_seconds = min(self.round_trip_seconds, max(seconds, 0.0))

    def on_arrival(self, arrival: Arrival) -> None:
        """The other side reports an arrival; ProtocolError if it contradicts an earlier report."""
        if self.arrivals:
            last = self.arrivals[-1]
            if arrival.seconds <= last.seconds or arrival.total_bytes <= last.total_bytes:
                raise ProtocolError("expected a probe's arrivals in order, found one that goes back in time")
        self.arrivals.append(arrival)

    def on_kernel_ack(self, seconds: float, packets: int, packet_bytes: int, resent: int) -> None:
        """The sender's kernel reports acknowledged packets, the bytes in each, and retransmissions.

        Packets count with the size that they had when sent: a later change of the size does not affect them.
        """
        if not self._acknowledged:
            self._acknowledged.append(Arrival(seconds, packets * packet_bytes))
        else:
            size = min(
                packet_bytes, self._packet_bytes
            )  # packets in flight during a change may have either size
            acked = (packets - self._packets) % _PACKETS_WRAP * size
            self._acknowledged.append(Arrival(seconds, self._acknowledged[-1].total_bytes + acked))
        self._packets, self._packet_bytes = packets, packet_bytes
        self._resent.append(resent)

    @property
    def bytes_per_second(self) -> float | None:
        """The best estimate of the path's rate so far; None before two arrivals.

        A short window shows best a rate that still grows; only a long one evens out stalls. If packets were
        lost, the kernel knows better: it counts packets behind a gap when they arrive.
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
        windows.append(
            self.arrivals[-1].seconds - self.arrivals[0].seconds
        )  # the whole probe, if it was shorter
        return next(filter(None, (self._fastest(self.arrivals, window) for window in windows)), None)

    @property
    def recent_bytes_per_second(self) -> float:
        """The rate over the last few reports."""
        recent = self.arrivals[-_RECENT_REPORTS:]
        if len(recent) < 2:
            return 0.0
        return (recent[-1].total_bytes - recent[0].total_bytes) / (recent[-1].seconds - recent[0].seconds)

    @property
    def total_bytes(self) -> int:
        """How many bytes have arrived in total."""
        return self.arrivals[-1].total_bytes if self.arrivals else 0

    @property
    def is_settled(self) -> bool:
        """Whether the last few round trips brought neither a stall nor a higher rate."""
        calm = max(_CALM_SECONDS, _CALM_ROUND_TRIPS * self.round_trip_seconds)
        if not self.arrivals or not math.isfinite(calm) or self._has_stalled:
            return False
        earlier = [one for one in self.arrivals if one.seconds <= self.arrivals[-1].seconds - calm]
        before = self._fastest(earlier, _WINDOW_SECONDS)
        now = self._fastest(self.arrivals, _WINDOW_SECONDS)
        return before is not None and now is not None and now <= before * _SETTLED_GROWTH

    @property
    def _has_stalled(self) -> bool:
        # A new connection waits for acknowledgements, not for lost packets.
        begun = self.arrivals[0].seconds + max(
            _BEGINNING_SECONDS, _BEGINNING_ROUND_TRIPS * self.round_trip_seconds
        )
        return any(after.seconds > begun for _, after in stalls(self.arrivals, self._stall_seconds))

    @property
    def _stall_seconds(self) -> float:
        # Sending a lost packet again takes a round trip.
        return max(_SHORTEST_STALL_SECONDS, self.round_trip_seconds / 2)

    def _fastest(self, arrivals: list[Arrival], window_seconds: float) -> float | None:
        return fastest(arrivals, window_seconds, self._stall_seconds)

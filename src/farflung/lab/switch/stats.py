"""Counters of a lab's switch: packets of each pair, and the switch's lateness."""

from __future__ import annotations

import time

import msgspec

VOID_ABOVE_MS = 5.0
_BUCKETS_PER_SECOND = 50_000  # 0.02 ms each
_BUCKETS = 5_000  # the last one holds all from 100 ms


class LinkStats(msgspec.Struct, frozen=True):
    """The counters of one directed pair: packets delivered (bytes of IP packets), and dropped by reason.

    `cut_drops` are packets of a pair, or of an interface, that was cut. `is_cut` and `settings` (as text) are
    the current state.
    """

    source: str
    target: str
    packets: int
    bytes: int
    queue_drops: int
    loss_drops: int
    cut_drops: int
    is_cut: bool = False
    settings: str = ""


class Stats(msgspec.Struct, frozen=True):
    """The counters of a switch over `seconds`, with the pairs that had traffic.

    Lateness is the time from when a packet is due until it is delivered. If its 99th percentile is above
    5 ms, the emulation is `void`: the machine was too busy for valid figures. `real_time` says whether the
    switch runs at real-time priority, `priority` says so as text. `unread_packets` were sent faster than the
    switch reads: they are dropped before it, and belong to no pair here.
    """

    seconds: float
    cpu_seconds: float
    packets: int
    late_p50_ms: float
    late_p99_ms: float
    void: bool
    real_time: bool
    priority: str
    links: tuple[LinkStats, ...]
    unread_packets: int = 0

    def link(self, source: str, target: str) -> LinkStats:
        """The counts of one ordered pair; zeros if it had no traffic."""
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        return LinkStats(source, target, 0, 0, 0, 0, 0)


class Meter:
    """Counts a switch's lateness in a histogram, with one addition per packet."""

    def __init__(self, real_time: bool, priority: str) -> None:
        self._real_time, self._priority = real_time, priority
        self.reset()

    def reset(self) -> None:
        """Count from zero again."""
        self._counts = [0] * _BUCKETS
        self._since, self._cpu_before = time.monotonic(), time.process_time()

    def late(self, seconds: float) -> None:
        """Count one packet."""
        bucket = int(seconds * _BUCKETS_PER_SECOND)
        self._counts[bucket if bucket < _BUCKETS else -1] += 1

    def stats(self, links: tuple[LinkStats, ...], unread_packets: int = 0) -> Stats:
        """The counters since the last reset."""
        late_p99_ms = self.quantile_ms(0.99)
        return Stats(
            seconds=time.monotonic() - self._since,
            cpu_seconds=time.process_time() - self._cpu_before,
            packets=sum(self._counts),
            late_p50_ms=self.quantile_ms(0.5),
            late_p99_ms=late_p99_ms,
            void=late_p99_ms > VOID_ABOVE_MS,
            real_time=self._real_time,
            priority=self._priority,
            links=links,
            unread_packets=unread_packets,
        )

    def quantile_ms(self, share: float) -> float:
        """The lateness that `share` of the packets did not exceed, up to 0.02 ms; 0 if there were none."""
        wanted = share * sum(self._counts)
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return (bucket + 1) * 1e3 / _BUCKETS_PER_SECOND
        return 0.0

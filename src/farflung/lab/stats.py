"""What a lab's switch did: counts of each pair, and how late it was itself."""

from __future__ import annotations

import msgspec

VOID_ABOVE_MS = 5.0
_BUCKETS_PER_SECOND = 50_000  # 0.02 ms each
_BUCKETS = 5_000  # the last one holds all from 100 ms


class LinkStats(msgspec.Struct, frozen=True):
    """One ordered pair: what was delivered (bytes of IP packets), and what was dropped and why.

    `cut_drops` are packets of a pair, or of an interface, that was cut.
    """

    source: str
    target: str
    packets: int
    bytes: int
    queue_drops: int
    loss_drops: int
    cut_drops: int


class Stats(msgspec.Struct, frozen=True):
    """What a switch did in `seconds`, over the pairs that had traffic.

    Lateness is how long after its due time a packet was handed over. With a 99th percentile above 5 ms the
    emulation is `void`: the machine was too busy for its figures to mean anything. `real_time` says whether
    the switch runs at real-time priority, `priority` in words.
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

    def link(self, source: str, target: str) -> LinkStats:
        """The counts of one ordered pair; zeros if it had no traffic."""
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        return LinkStats(source, target, 0, 0, 0, 0, 0)


class Lateness:
    """A histogram of seconds; adding to it costs one addition."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS

    def add(self, seconds: float) -> None:
        """Count one packet."""
        bucket = int(seconds * _BUCKETS_PER_SECOND)
        self._counts[bucket if bucket < _BUCKETS else -1] += 1

    def total(self) -> int:
        """How many were counted."""
        return sum(self._counts)

    def quantile_ms(self, share: float) -> float:
        """The lateness that `share` of the packets did not exceed, up to 0.02 ms; 0 if there were none."""
        wanted = share * self.total()
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return (bucket + 1) * 1e3 / _BUCKETS_PER_SECOND
        return 0.0

"""When a stream's bytes came, and from that the rate of the path they took. No sockets and no clock here."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

PAYLOAD_SHARE = 1448 / 1500
"""Of a line's rate, what is left for payload after IPv4 and TCP headers (with timestamps) of full packets."""

_STALL_INTERVALS = 3


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

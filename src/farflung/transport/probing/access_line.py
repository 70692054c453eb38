"""What a holder's line carries when all of its links are busy at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from farflung.transport.link.rate_estimator import Arrival, fastest, line_mbps
from farflung.transport.probing.estimator import ProbeEstimator
from farflung.transport.timeouts import FAN_SECONDS

_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 5 * _LOOK_SECONDS
_BEGINNING_ROUND_TRIPS = 5
_LONG_WINDOW_SECONDS = 0.4


@dataclass(frozen=True)
class LineEstimate:
    """What all links together carried, in Mbit/s of the line, packet headers included."""

    bandwidth_mbps: float
    is_settled: bool


async def watch(total_bytes: Callable[[], int], round_trip_seconds: float) -> LineEstimate:
    """The rate at which `total_bytes` of all links grows, once it grows no faster, or as far as time allows.

    `round_trip_seconds` is that of the longest link. While this process itself stands still it notes nothing,
    so that time counts as no more than a few looks, until all has taken twice as long as it may.
    """
    findings = ProbeEstimator()
    findings.answered(round_trip_seconds)
    left, now = FAN_SECONDS + _BEGINNING_ROUND_TRIPS * round_trip_seconds, time.monotonic()
    latest = now + 2 * left
    while left > 0 and now < latest and not findings.is_settled:
        if (total := total_bytes()) > findings.total_bytes:
            findings.arrived(Arrival(now, total))
        await asyncio.sleep(_LOOK_SECONDS)
        before, now = now, time.monotonic()
        left -= min(now - before, _LONGEST_LOOK_SECONDS)
    # What is told late comes at once: a long window evens that out, where there was time for one.
    rate = fastest(findings.arrivals, _LONG_WINDOW_SECONDS, round_trip_seconds) or findings.bytes_per_second
    return LineEstimate(line_mbps(rate or 0.0), findings.is_settled)

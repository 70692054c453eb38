"""Measure a holder's access line while all of its links are busy at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from farflung.transport.link.rate_estimator import Arrival, fastest, line_mbps
from farflung.transport.probing.estimator import ProbeEstimator
from farflung.transport.timeouts import ACCESS_LINE_SECONDS

_POLL_SECONDS = 0.02
_LONGEST_POLL_SECONDS = 5 * _POLL_SECONDS
_BEGINNING_ROUND_TRIPS = 5
_LONG_WINDOW_SECONDS = 0.4


@dataclass(frozen=True)
class LineEstimate:
    """The rate of all links together, in Mbit/s of the line, packet headers included."""

    bandwidth_mbps: float
    is_settled: bool


async def watch(total_bytes: Callable[[], int], round_trip_seconds: float) -> LineEstimate:
    """Measure how fast `total_bytes` of all links grows, until the rate settles or time is up.

    `round_trip_seconds` is that of the longest link. While this process is suspended it sees nothing, so that
    time counts only as a few polls, until twice the limit has passed in total.
    """
    estimator = ProbeEstimator()
    estimator.on_round_trip(round_trip_seconds)
    left, now = ACCESS_LINE_SECONDS + _BEGINNING_ROUND_TRIPS * round_trip_seconds, time.monotonic()
    latest = now + 2 * left
    while left > 0 and now < latest and not estimator.is_settled:
        if (total := total_bytes()) > estimator.total_bytes:
            estimator.on_arrival(Arrival(now, total))
        await asyncio.sleep(_POLL_SECONDS)
        before, now = now, time.monotonic()
        left -= min(now - before, _LONGEST_POLL_SECONDS)
    # Late reports arrive at once: a long window evens that out, if there was time for one.
    rate = fastest(estimator.arrivals, _LONG_WINDOW_SECONDS, round_trip_seconds) or estimator.bytes_per_second
    return LineEstimate(line_mbps(rate or 0.0), estimator.is_settled)

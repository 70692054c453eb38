"""Measure links from training traffic. Pure.

A rate counts when two reports agree. A rate much lower than the known one counts only if three reports agree
and no other link of either end is busy, because links that share an access line all look slow. A link without
traffic keeps its measurement.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from farflung.broker.survey.measurements import Measurements, Pair, PairMeasurement
from farflung.plans.topology import MOST_MBPS, MOST_MILLISECONDS
from farflung.protocol.reachability import Links
from farflung.transport.link.stats import LinkStatus

BUSY_BYTES = 2**18
"""Bytes that a link must have carried since the last report to count as busy."""

AGREEING = 0.1
ENOUGH, ENOUGH_TO_LOWER = 2, 3
MAXIMUM_LAST_REPORTS = 20_000


@dataclass(frozen=True)
class _LastReport:
    """The last report about one link, how many in a row agree with it, and when the link was last busy."""

    job: str
    bytes_received: int
    mbps: float
    agreeing: int
    busy_at: float


class PassiveMeasurement:
    """Turns link reports into measurements. A link counts as busy for `memory_seconds` after its traffic."""

    def __init__(self, memory_seconds: float) -> None:
        self._memory_seconds = memory_seconds
        self._last_reports: dict[Pair, _LastReport] = {}

    def on_report(
        self, holder: str, links: Links, workers: Collection[str], known: Measurements, now: float
    ) -> list[PairMeasurement]:
        """Newer measurements of the links from other workers to `holder`, from its report."""
        busy = [
            report.link
            for report in links.reports
            if report.link and self._note(holder, links, report.link, now)
        ]
        found = [self._measurement((link.peer, holder), link, known, now) for link in busy]
        return [one for one in found if one is not None and {*one.pair} <= set(workers)]

    def _note(self, holder: str, links: Links, link: LinkStatus, now: float) -> bool:
        """Record one report; returns whether the link was busy since the last one."""
        pair, mbps = (link.peer, holder), link.incoming_mbps
        before = self._last_reports.get(pair)
        if before is None or before.job != links.job or link.bytes_received < before.bytes_received:
            before = _LastReport(links.job, 0, 0.0, 0, -math.inf)
        carried = link.bytes_received - before.bytes_received
        if carried < BUSY_BYTES or mbps is None or not 0 < mbps <= MOST_MBPS:
            return False
        agrees = abs(mbps - before.mbps) <= AGREEING * before.mbps
        self._last_reports.pop(pair, None)  # the newest stand last
        self._last_reports[pair] = _LastReport(
            links.job, link.bytes_received, mbps, before.agreeing + 1 if agrees else 1, now
        )
        while len(self._last_reports) > MAXIMUM_LAST_REPORTS:
            del self._last_reports[next(iter(self._last_reports))]
        return True

    def _measurement(
        self, pair: Pair, link: LinkStatus, known: Measurements, now: float
    ) -> PairMeasurement | None:
        seen, before = self._last_reports.get(pair), known.pairs.get(pair)
        if seen is None or seen.agreeing < ENOUGH:
            return None
        if before is None or not before.bandwidth_mbps:
            latency = _latency(link, 0.0)
            return PairMeasurement(*pair, seen.mbps, latency, now, "traffic", link.path) if latency else None
        is_lower = seen.mbps < (1 - AGREEING) * before.bandwidth_mbps
        if is_lower and (seen.agreeing < ENOUGH_TO_LOWER or not self._is_alone(pair, now)):
            return None
        return msgspec.structs.replace(
            before,
            bandwidth_mbps=seen.mbps if is_lower else max(seen.mbps, before.bandwidth_mbps),
            latency_ms=_latency(link, before.latency_ms),
            at=now,
            source="traffic",
            path=link.path,
            problem="",
            failures=0,
        )

    def _is_alone(self, pair: Pair, now: float) -> bool:
        """Whether no other link of the sender's or receiver's access line was busy lately."""
        return not any(
            other != pair
            and now - seen.busy_at < self._memory_seconds
            and (other[0] == pair[0] or other[1] == pair[1])
            for other, seen in self._last_reports.items()
        )


def _latency(link: LinkStatus, otherwise: float) -> float:
    found = link.latency_ms
    return found if found is not None and 0 <= found <= MOST_MILLISECONDS else otherwise

"""What the way between two workers is taken for when nobody measured it, and how that is said. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from farflung.broker.measurements import Measurements, Pair, PairMeasurement
from farflung.broker.records import Worker
from farflung.plans.topology import LEAST_MBPS, MOST_MBPS, MOST_MILLISECONDS

ASSUMED_MBPS = 100.0
ASSUMED_MS = 25.0

BACK = "as far as the way back, and as fast as the slower of its ends was on other links"
SITES = "as the median of the links between the same two sites"
ENDS = "as fast as the slower of its two ends was on other links, and as far as the median of these"
FLEET = "as the median of all links"
NOTHING = f"{ASSUMED_MBPS:g} Mbit/s and {ASSUMED_MS:g} ms, for nothing is known of either end"
FAILED = " yet, for a probe failed"

Key = TypeVar("Key", bound=Hashable)


class Way(NamedTuple):
    """One ordered pair: Mbit/s (0: no way) and ms one way."""

    mbps: float
    ms: float


class Ways:
    """Says of every pair of `members` what was measured or what it is taken for; counts the latter.

    A rate that an owner has declared for a line bounds what is assumed, never what was measured.
    """

    def __init__(self, members: Sequence[Worker], measurements: Measurements) -> None:
        self._site = {worker.worker: worker.site for worker in members}
        found = [way for way in measurements.pairs.values() if {*way.pair} <= self._site.keys()]
        standing = [way for way in found if way.bandwidth_mbps > 0]
        self._found = {way.pair: way for way in found}
        self._sites = _medians((self._sites_of(way.pair), way) for way in standing)
        self._out = _best((way.sender, way) for way in standing)
        self._in = _best((way.receiver, way) for way in standing)
        self._near = _medians((end, way) for way in standing for end in way.pair)
        self._fleet = _medians(("", way) for way in standing).get("")
        self._total = len(members) * (len(members) - 1)
        self._assumed: Counter[tuple[bool, str]] = Counter()

    def way(self, sender: Worker, receiver: Worker) -> Way:
        """From one member to another; to itself is nothing."""
        if sender.worker == receiver.worker:
            return Way(0.0, 0.0)
        found = self._found.get((sender.worker, receiver.worker))
        if found is not None and found.state == "measured":
            return _bounded(found.bandwidth_mbps, found.latency_ms)
        if found is not None and found.state == "unreachable":
            return Way(0.0, 0.0)
        reason, way = self._guess(sender.worker, receiver.worker)
        self._assumed[found is not None, reason] += 1
        declared = [rate for rate in (sender.line.up_mbps, receiver.line.down_mbps) if rate is not None]
        return _bounded(min([way.mbps, *declared]), way.ms)

    def words(self) -> list[str]:
        """What was assumed of the pairs that were asked for so far."""
        return [
            f"{count} of {self._total} links not measured{FAILED if has_failed else ''}: taken {reason}"
            for (has_failed, reason), count in self._assumed.items()
        ]

    def _guess(self, sender: str, receiver: str) -> tuple[str, Way]:
        back = self._found.get((receiver, sender))
        ends = [rates[end] for rates, end in ((self._out, sender), (self._in, receiver)) if end in rates]
        if back is not None and back.bandwidth_mbps:
            return BACK, Way(min(ends, default=back.bandwidth_mbps), back.latency_ms)
        sites = self._sites_of((sender, receiver))
        if all(sites) and sites in self._sites:
            return SITES, self._sites[sites]
        near = [self._near[end].ms for end in (sender, receiver) if end in self._near]
        if len(ends) == 2:
            return ENDS, Way(min(ends), max(near))
        if self._fleet is not None:
            return FLEET, Way(min([self._fleet.mbps, *ends]), max([self._fleet.ms, *near]))
        return NOTHING, Way(ASSUMED_MBPS, ASSUMED_MS)

    def _sites_of(self, pair: Pair) -> Pair:
        return self._site[pair[0]], self._site[pair[1]]


def _bounded(mbps: float, ms: float) -> Way:
    return Way(min(max(mbps, LEAST_MBPS), MOST_MBPS), min(max(ms, 0.0), MOST_MILLISECONDS))


def _best(ways: Iterable[tuple[Key, PairMeasurement]]) -> Mapping[Key, float]:
    best: dict[Key, float] = {}
    for key, way in ways:
        best[key] = max(best.get(key, 0.0), way.bandwidth_mbps)
    return best


def _medians(ways: Iterable[tuple[Key, PairMeasurement]]) -> Mapping[Key, Way]:
    groups: defaultdict[Key, list[PairMeasurement]] = defaultdict(list)
    for key, way in ways:
        groups[key].append(way)
    return {
        key: Way(
            statistics.median(way.bandwidth_mbps for way in group),
            statistics.median(way.latency_ms for way in group),
        )
        for key, group in groups.items()
    }

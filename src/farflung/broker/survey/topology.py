"""Build a topology from measurements, with defaults for links that were not measured. Pure.

The defaults are described in words (`MeasuredTopology.assumed`), so that users know what was not measured.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from farflung.broker.core.records import Worker
from farflung.broker.survey.measurements import Measurements, Pair, PairMeasurement
from farflung.plans import Topology, WorkerSpec
from farflung.plans.topology import LEAST_MBPS, MOST_CORES, MOST_GIGABYTES, MOST_MBPS, MOST_MILLISECONDS
from farflung.text import printable

ASSUMED_MBPS = 100.0
ASSUMED_MS = 25.0

AS_OPPOSITE = "with the latency of the opposite direction and the rate of its slower end on other links"
AS_SITES = "as the median of the links between the same two sites"
AS_ENDS = "with the rate of its slower end on other links and their median latency"
AS_FLEET = "as the median of all links"
AS_UNKNOWN = f"{ASSUMED_MBPS:g} Mbit/s and {ASSUMED_MS:g} ms, because nothing is known about either end"
FAILED = " yet, because a probe failed"

Key = TypeVar("Key", bound=Hashable)


class DefaultLink(NamedTuple):
    """Rate and latency of one link: Mbit/s (0: unreachable) and ms one way."""

    mbps: float
    ms: float


class LinkDefaults:
    """Measured or assumed rate and latency of each link between `members`; counts the assumptions.

    An access line's declared rate limits assumed rates, but never measured ones.
    """

    def __init__(self, members: Sequence[Worker], measurements: Measurements) -> None:
        self._site = {worker.worker: worker.site for worker in members}
        found = [link for link in measurements.pairs.values() if {*link.pair} <= self._site.keys()]
        measured = [link for link in found if link.bandwidth_mbps > 0]
        self._found = {link.pair: link for link in found}
        self._sites = _medians((self._sites_of(link.pair), link) for link in measured)
        self._out = _best((link.sender, link) for link in measured)
        self._in = _best((link.receiver, link) for link in measured)
        self._near = _medians((end, link) for link in measured for end in link.pair)
        self._fleet = _medians(("", link) for link in measured).get("")
        self._total = len(members) * (len(members) - 1)
        self._assumed: Counter[tuple[bool, str]] = Counter()

    def link(self, sender: Worker, receiver: Worker) -> DefaultLink:
        """The link from one member to another; zero for a member to itself."""
        if sender.worker == receiver.worker:
            return DefaultLink(0.0, 0.0)
        found = self._found.get((sender.worker, receiver.worker))
        if found is not None and found.state == "measured":
            return _bounded(found.bandwidth_mbps, found.latency_ms)
        if found is not None and found.state == "unreachable":
            return DefaultLink(0.0, 0.0)
        reason, link = self._assume(sender.worker, receiver.worker)
        self._assumed[found is not None, reason] += 1
        declared = [rate for rate in (sender.line.up_mbps, receiver.line.down_mbps) if rate is not None]
        return _bounded(min([link.mbps, *declared]), link.ms)

    def assumptions(self) -> list[str]:
        """Describe what was assumed for the links returned so far."""
        return [
            f"{count} of {self._total} links not measured{FAILED if has_failed else ''}: assumed {reason}"
            for (has_failed, reason), count in self._assumed.items()
        ]

    def _assume(self, sender: str, receiver: str) -> tuple[str, DefaultLink]:
        back = self._found.get((receiver, sender))
        ends = [rates[end] for rates, end in ((self._out, sender), (self._in, receiver)) if end in rates]
        if back is not None and back.bandwidth_mbps:
            return AS_OPPOSITE, DefaultLink(min(ends, default=back.bandwidth_mbps), back.latency_ms)
        sites = self._sites_of((sender, receiver))
        if all(sites) and sites in self._sites:
            return AS_SITES, self._sites[sites]
        near = [self._near[end].ms for end in (sender, receiver) if end in self._near]
        if len(ends) == 2:
            return AS_ENDS, DefaultLink(min(ends), max(near))
        if self._fleet is not None:
            return AS_FLEET, DefaultLink(min([self._fleet.mbps, *ends]), max([self._fleet.ms, *near]))
        return AS_UNKNOWN, DefaultLink(ASSUMED_MBPS, ASSUMED_MS)

    def _sites_of(self, pair: Pair) -> Pair:
        return self._site[pair[0]], self._site[pair[1]]


def _bounded(mbps: float, ms: float) -> DefaultLink:
    return DefaultLink(min(max(mbps, LEAST_MBPS), MOST_MBPS), min(max(ms, 0.0), MOST_MILLISECONDS))


def _best(links: Iterable[tuple[Key, PairMeasurement]]) -> Mapping[Key, float]:
    best: dict[Key, float] = {}
    for key, link in links:
        best[key] = max(best.get(key, 0.0), link.bandwidth_mbps)
    return best


def _medians(links: Iterable[tuple[Key, PairMeasurement]]) -> Mapping[Key, DefaultLink]:
    groups: defaultdict[Key, list[PairMeasurement]] = defaultdict(list)
    for key, link in links:
        groups[key].append(link)
    return {
        key: DefaultLink(
            statistics.median(link.bandwidth_mbps for link in group),
            statistics.median(link.latency_ms for link in group),
        )
        for key, group in groups.items()
    }


ASSUMED_TFLOPS = 1.0
_SITE_LENGTH = 128
_FRAMEWORK_LENGTH = 128


@dataclass(frozen=True)
class MeasuredTopology:
    """A topology, with workers sorted by id, and descriptions of what in it was assumed."""

    topology: Topology
    assumed: tuple[str, ...]


def topology_of(workers: Iterable[Worker], measurements: Measurements) -> MeasuredTopology:
    """The topology of these workers; ValueError if there are none, or more than a topology can hold."""
    members = sorted(workers, key=lambda worker: worker.worker)
    specs, words = _specs(members, measurements)
    links = LinkDefaults(members, measurements)
    rows = [[links.link(a, b) for b in members] for a in members]
    words += links.assumptions()
    topology = Topology(
        workers=tuple(specs),
        latency_ms=tuple(tuple(link.ms for link in row) for row in rows),
        bandwidth_mbps=tuple(tuple(link.mbps for link in row) for row in rows),
        source="measured by farflung on a live fleet",
        note="; ".join(words),
    )
    return MeasuredTopology(topology, tuple(words))


def _specs(members: Sequence[Worker], measurements: Measurements) -> tuple[list[WorkerSpec], list[str]]:
    known = [worker.device.tflops for worker in members if worker.device.tflops > 0]
    usual = statistics.median(known) if known else ASSUMED_TFLOPS
    unknown = [worker.worker for worker in members if not worker.device.tflops > 0]
    words = (
        [f"devices of unknown speed assumed to sustain {usual:.3g} TFLOP/s: {', '.join(unknown)}"]
        if unknown
        else []
    )
    closed, sharing = _behind_nat(measurements), _sharing(members)
    specs = [
        WorkerSpec(
            id=worker.worker,
            site=worker.site[:_SITE_LENGTH],
            tflops=worker.device.tflops or usual,
            memory_gb=min(max(worker.device.memory_bytes, 1) / 1e9, MOST_GIGABYTES),
            up_mbps=_line(worker.line.up_mbps, measurements.line_mbps(worker.worker, "up")),
            down_mbps=_line(worker.line.down_mbps, measurements.line_mbps(worker.worker, "down")),
            behind_nat=worker.worker in closed,
            opset=worker.device.opset.version,
            lacks=worker.device.lacks,
            framework=printable(worker.device.framework)[:_FRAMEWORK_LENGTH],
            rates=worker.device.rates,
            machine=worker.device.machine if worker.device.machine in sharing else None,
            cores=sharing.get(worker.device.machine),
        )
        for worker in members
    ]
    return specs, words


def _sharing(members: Sequence[Worker]) -> dict[str, int]:
    """Of each machine with several workers: how many of them can compute at a time without being slower."""
    counts = Counter(worker.device.machine for worker in members)
    found: dict[str, int] = {}
    for worker in members:
        device = worker.device
        if device.machine and counts[device.machine] > 1:
            at_once = max(1, min(device.cores, MOST_CORES) // max(1, device.threads))
            found[device.machine] = min(found.get(device.machine, at_once), at_once)
    return found


def _line(declared: float | None, found: float | None) -> float | None:
    """The owner's rate takes precedence over a measured one, which other users of the line may lower."""
    if declared is not None or found is None:
        return declared
    return min(max(found, LEAST_MBPS), MOST_MBPS)


def _behind_nat(measurements: Measurements) -> set[str]:
    """Workers that could not be dialled by any worker that tried."""
    opened = {found.dialled for found in measurements.pairs.values()}
    return {name for found in measurements.pairs.values() for name in found.closed} - opened

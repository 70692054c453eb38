"""Compare the settings of a lab's links with what plain traffic measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from farflung.errors import LabError
from farflung.lab.machine import require_program
from farflung.lab.measure import traffic
from farflung.lab.network import Network
from farflung.lab.running_lab import RunningLab
from farflung.lab.spec import LabSpec, LinkSettings, Node
from farflung.lab.switch.shaper import FRAME_OVERHEAD
from farflung.lab.switch.stats import VOID_ABOVE_MS

TCP_HEADERS = 52  # IPv4, TCP and its timestamps: the headers of a TCP segment
PROBE_BYTES = 72  # payload
PROBE_FRAME_BYTES = PROBE_BYTES + traffic.UDP_HEADERS + FRAME_OVERHEAD
PROBE_SHARE = 0.25  # of a rate, so that no probe waits
RATE_TOLERANCE = (0.97, 1.01)  # of the setting
LATENCY_TOLERANCE_MS = 1.0
LATENCY_TOLERANCE = 0.02
LOSS_DEVIATIONS = 4.0  # standard deviations of the share that probes lose by chance
LATENCY_PROBES, LOSS_PROBES = 200, 8000
PROBE_SECONDS, LOSS_SECONDS = 2.0, 4.0
MOST_ROWS = 8  # for one topology
OVERHEAD = (
    "measured is goodput divided by the payload's share of a frame: 1448 of 1514 bytes for TCP at"
    " an MTU of 1500 (Ethernet, IPv4, TCP with timestamps), 1472 of 1514 for UDP, which measures lossy links"
    " and counts what was not lost"
)


class Row(msgspec.Struct, frozen=True):
    """One link or access line. Times are one-way, in ms; `ping_ms` is a round trip; losses are shares."""

    link: str
    flows: int
    asked_mbps: float
    measured_mbps: float
    goodput_mbps: float
    asked_ms: float
    measured_ms: float
    ping_ms: float
    asked_loss: float
    measured_loss: float
    late_p99_ms: float
    ok: bool


class Calibration(msgspec.Struct, frozen=True):
    """All rows. `ok` says that each is within tolerance and the switch was never too late."""

    rows: tuple[Row, ...]
    ok: bool
    void: bool
    overhead: str = OVERHEAD


@dataclass(frozen=True)
class Case:
    """One measurement in a lab: simultaneous flows that share the settings `asked`."""

    title: str
    spec: LabSpec
    flows: tuple[tuple[str, str], ...]
    asked: LinkSettings


@dataclass(frozen=True)
class Effort:
    """How long to measure, in seconds: to skip at the start, and to count."""

    skip_seconds: float
    seconds: float


FULL = Effort(3.0, 5.0)
QUICK = Effort(2.0, 3.0)


def standard_cases(quick: bool) -> list[Case]:
    """The settings that the project's testbeds use; fewer with `quick`."""
    cases = [
        _pair("8 Mbit/s, 50 ms", LinkSettings(8, 50)),
        _pair("100 Mbit/s, 20 ms", LinkSettings(100, 20)),
        _pair("100 Mbit/s, 25 ms, 1 % loss", LinkSettings(100, 25, loss=0.01)),
    ]
    if quick:
        return cases
    slow, fast = LinkSettings(8, 50), LinkSettings(50, 50)
    return [
        *cases,
        _pair("20 Mbit/s, 25 ms", LinkSettings(20, 25)),
        _pair("asymmetric 8 / 50 Mbit/s: up", slow, fast),
        _pair("asymmetric 8 / 50 Mbit/s: down", fast, slow),
        _shared_line(),
        _pair("1000 Mbit/s, 5 ms, segmentation offload", LinkSettings(1000, 5), offload=True),
    ]


def topology_cases(spec: LabSpec) -> list[Case]:
    """One pair for each distinct setting of a lab, at most eight, skipping pairs behind NAT."""
    nodes = {node.name: node for node in spec.nodes}
    cases: dict[LinkSettings, Case] = {}
    for (source, target), link in spec.links.items():
        rates = [nodes[source].up_mbps, link.bandwidth_mbps, nodes[target].down_mbps]
        limits = [rate for rate in rates if rate is not None]
        asked = replace(link, bandwidth_mbps=min(limits, default=None))
        if asked.bandwidth_mbps is not None and not nodes[target].behind_nat and asked not in cases:
            cases[asked] = Case(f"{source} -> {target}", spec, ((source, target),), asked)
    if not cases:
        raise LabError("there is nothing to calibrate: no link of this topology has a rate")
    return list(cases.values())[:MOST_ROWS]


def calibrate(cases: Sequence[Case], effort: Effort, tell: Callable[[Row], None]) -> Calibration:
    """Measure the cases one after the other, and call `tell` with each row."""
    require_program("ping", "a calibration")
    rows = []
    for row in _measured(cases, effort):
        tell(row)
        rows.append(row)
    void = any(row.late_p99_ms > VOID_ABOVE_MS for row in rows)
    return Calibration(tuple(rows), all(row.ok for row in rows) and not void, void)


def _pair(title: str, there: LinkSettings, back: LinkSettings | None = None, offload: bool = False) -> Case:
    links = {("a", "b"): there, ("b", "a"): back or there}
    spec = LabSpec((Node("a"), Node("b")), links, segmentation_offload=offload)
    return Case(title, spec, (("a", "b"),), there)


def _shared_line() -> Case:
    names = ("b", "c")
    link = LinkSettings(latency_ms=20)
    links = {pair: link for name in names for pair in (("a", name), (name, "a"))}
    spec = LabSpec((Node("a", up_mbps=20), Node("b"), Node("c")), links)
    return Case(
        "20 Mbit/s line shared by 2 flows, 20 ms",
        spec,
        tuple(("a", name) for name in names),
        LinkSettings(20, 20),
    )


def _measured(cases: Sequence[Case], effort: Effort) -> Iterator[Row]:
    """Measure the cases; consecutive cases with the same lab share one start of it."""
    at = 0
    while at < len(cases):
        spec = cases[at].spec
        with Network(spec) as network:
            while at < len(cases) and cases[at].spec is spec:
                yield _row(network, cases[at], effort)
                at += 1


def _row(network: RunningLab, case: Case, effort: Effort) -> Row:
    asked, flow = case.asked, case.flows[0]
    assert asked.bandwidth_mbps is not None
    network.stats(reset=True)
    ping_ms = traffic.ping_ms(network, *flow)
    count, seconds = _probe_count(asked)
    probes = traffic.probes(network, *flow, count, seconds, PROBE_BYTES)
    lost = 1 - probes.received / count
    mtu = case.spec.mtu
    if asked.loss:
        headers = traffic.UDP_HEADERS
        goodput = traffic.flooded_mbps(network, flow, asked, effort.seconds, mtu)
    else:
        headers = TCP_HEADERS
        window_seconds = 2 * asked.latency_ms / 1e3 + asked.queue_limit_ms / 2e3
        window_bytes = round(window_seconds * asked.bandwidth_mbps * 1e6 / 8 / len(case.flows))
        goodput = traffic.bulk_mbps(network, case.flows, window_bytes, effort.skip_seconds, effort.seconds)
    measured_mbps = goodput * (mtu + FRAME_OVERHEAD) / (mtu - headers) / (1 - asked.loss)
    late_p99_ms = network.stats().late_p99_ms
    return Row(
        link=case.title,
        flows=len(case.flows),
        asked_mbps=asked.bandwidth_mbps,
        measured_mbps=measured_mbps,
        goodput_mbps=goodput,
        asked_ms=asked.latency_ms,
        measured_ms=probes.latency_ms,
        ping_ms=ping_ms,
        asked_loss=asked.loss,
        measured_loss=lost,
        late_p99_ms=late_p99_ms,
        ok=_is_close(asked, measured_mbps, probes.latency_ms, lost, count),
    )


def _probe_count(asked: LinkSettings) -> tuple[int, float]:
    """The number of probes, and seconds: more probes for links with loss, at most PROBE_SHARE of the rate."""
    assert asked.bandwidth_mbps is not None
    count, seconds = (LOSS_PROBES, LOSS_SECONDS) if asked.loss else (LATENCY_PROBES, PROBE_SECONDS)
    most = PROBE_SHARE * asked.bandwidth_mbps * 1e6 / 8 / PROBE_FRAME_BYTES * seconds
    return max(1, min(count, int(most))), seconds


def _is_close(asked: LinkSettings, mbps: float, latency_ms: float, loss: float, probes: int) -> bool:
    assert asked.bandwidth_mbps is not None
    serial_ms = PROBE_FRAME_BYTES * 8e-3 / asked.bandwidth_mbps
    deviation = (asked.loss * (1 - asked.loss) / probes) ** 0.5
    most_ms = asked.latency_ms * (1 + LATENCY_TOLERANCE) + LATENCY_TOLERANCE_MS + asked.jitter_ms + serial_ms
    return (
        RATE_TOLERANCE[0] <= mbps / asked.bandwidth_mbps <= RATE_TOLERANCE[1]
        and asked.latency_ms <= latency_ms <= most_ms
        and abs(loss - asked.loss) <= LOSS_DEVIATIONS * deviation
    )

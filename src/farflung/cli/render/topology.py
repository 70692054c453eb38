"""A topology as text: its workers, then the links between them or, if there are many, between sites."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from farflung.cli.render.tables import blocks, columns, paragraph
from farflung.plans.rates import tflops_text
from farflung.text import count_of, format_clock

if TYPE_CHECKING:
    from farflung.plans import Link, Topology, WorkerSpec
    from farflung.protocol.probing import FleetTopology, MeasuredLink

MOST_ROWS = 24
MOST_COLUMNS = 12


def topology_lines(topology: Topology, reported: FleetTopology | None) -> Iterator[str]:
    """Describe a topology; `reported` is what a broker reported besides its fleet's topology."""
    yield from paragraph(_heading(topology))
    headings = ("worker", "site", "TFLOP/s", "memory", "up", "down", "")
    yield from columns(headings, list(_workers(topology)), "<<<<<<<")
    groups = _groups(topology)
    if len(groups) > 1 or len(topology.workers) > 1:
        yield "from row to column: Mbit/s / ms one way" + (
            "" if len(groups) == len(topology.workers) else ", medians between two sites"
        )
        yield from blocks(["", *groups], list(_matrix(topology, groups)))
    if reported is not None:
        yield from _origins(reported)
    elif topology.note:
        yield from paragraph(topology.note)


def _heading(topology: Topology) -> str:
    sites = {worker.site for worker in topology.workers if worker.site}
    words = count_of(len(topology.workers), "worker") + (
        f" at {count_of(len(sites), 'site')}" if sites else ""
    )
    return f"{topology.title}: {words}" if topology.title else words


def _workers(topology: Topology) -> Iterator[tuple[str, ...]]:
    """A row per worker or, if there are too many, one for equal neighbours of a site."""
    alike = itertools.groupby(topology.workers, _traits if len(topology.workers) > MOST_ROWS else _id)
    for _, group in alike:
        first, *others = group
        yield f"{first.id} .. {others[-1].id} ({len(others) + 1})" if others else first.id, *_traits(first)


def _id(worker: WorkerSpec) -> tuple[str, ...]:
    return (worker.id,)


def _traits(worker: WorkerSpec) -> tuple[str, ...]:
    return (
        worker.site,
        tflops_text(worker.tflops, worker.rates),
        f"{worker.memory_gb:.1f} GB",
        _line(worker.up_mbps),
        _line(worker.down_mbps),
        "behind NAT" if worker.behind_nat else "",
    )


def _line(mbps: float | None) -> str:
    return "" if mbps is None else f"{_rate(mbps)} Mbit/s"


def _rate(mbps: float) -> str:
    return f"{mbps:.0f}" if mbps >= 100 else f"{mbps:.3g}"


def _groups(topology: Topology) -> Mapping[str, Sequence[int]]:
    """Worker numbers by the row that shows them: a worker or, if there are too many, a site."""
    if len(topology.workers) <= MOST_COLUMNS:
        return {worker.id: [number] for number, worker in enumerate(topology.workers)}
    groups: dict[str, list[int]] = {}
    for number, worker in enumerate(topology.workers):
        groups.setdefault(worker.site or "(no site)", []).append(number)
    if len(groups) <= MOST_COLUMNS:
        return groups
    largest = sorted(groups, key=lambda site: -len(groups[site]))[: MOST_COLUMNS - 1]
    rest = [number for site, numbers in groups.items() if site not in largest for number in numbers]
    return {
        **{site: groups[site] for site in groups if site in largest},
        f"({len(groups) - len(largest)} more)": rest,
    }


def _matrix(topology: Topology, groups: Mapping[str, Sequence[int]]) -> Iterable[tuple[str, ...]]:
    for name, sources in groups.items():
        yield name, *(_between(topology, sources, targets) for targets in groups.values())


def _between(topology: Topology, sources: Sequence[int], targets: Sequence[int]) -> str:
    links = [topology.link(a, b) for a in sources for b in targets if a != b]
    if not links:
        return "-"
    mbps = statistics.median(link.bandwidth_mbps for link in links)
    return f"{_rate(mbps)} / {_milliseconds(links)}" if mbps else "no link"


def _milliseconds(links: Sequence[Link]) -> str:
    milliseconds = statistics.median(link.latency_ms for link in links)
    return f"{milliseconds:.1f}" if milliseconds < 10 else f"{milliseconds:.0f}"


def _origins(reported: FleetTopology) -> Iterator[str]:
    measured = [link for link in reported.measured if link.state == "measured"]
    if measured:
        ages = [link.seconds_old for link in measured]
        traffic = sum(link.source == "traffic" for link in measured)
        yield (
            f"{count_of(len(ages), 'link')} measured, {traffic} of them from a job's traffic;"
            f" the oldest {format_clock(max(ages))} ago"
        )
    for words in reported.assumed:
        yield from paragraph(f"assumed: {words}")
    for link in reported.measured:
        if link.problem:
            yield from paragraph(_failure(link))
    if reported.survey:
        yield f"survey running: {reported.survey}"


def _failure(link: MeasuredLink) -> str:
    ends = f"from {link.sender} to {link.receiver}"
    if link.state == "unreachable":
        return f"no link {ends}: {link.problem}"
    counts = "the older measurement is used" if link.state == "measured" else "not measured yet"
    who = "members of a job had no link" if link.source == "job" else "a probe failed"
    return f"{who} {ends} ({counts}): {link.problem}"

"""The ways between groups of workers, as far as a picture can show them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from farflung.picture.places import CROWD, Group
from farflung.plans import Topology

MOST_GROUPS_WHOLE = 9
"""Of so many groups all ways are drawn; of more, those that matter."""

FASTEST_OF_EACH = 2


@dataclass(frozen=True)
class Between:
    """Two groups by their numbers, and the medians over their workers: Mbit/s there and back, ms one way."""

    one: int
    other: int
    there_mbps: float
    back_mbps: float
    latency_ms: float

    @property
    def both_mbps(self) -> float:
        """What both ways carry."""
        return min(self.there_mbps, self.back_mbps)


def between(topology: Topology, found: Sequence[Group]) -> list[Between]:
    """Every two groups, slow and long ways first, so that fast ones are drawn above them."""
    ways = [
        Between(
            a,
            b,
            _mbps(topology, found[a], found[b]),
            _mbps(topology, found[b], found[a]),
            statistics.median(topology.latency_ms[i][j] for i in found[a].members for j in found[b].members),
        )
        for a, b in itertools.combinations(range(len(found)), 2)
    ]
    return sorted(ways, key=lambda way: (way.both_mbps, -way.latency_ms))


def inside(topology: Topology, group: Group) -> tuple[float, float] | None:
    """The medians between the workers of a group: Mbit/s, and ms one way; None if there is only one."""
    links = [topology.link(a, b) for a, b in itertools.permutations(group.members, 2)]
    if not links:
        return None
    return (
        statistics.median(link.bandwidth_mbps for link in links),
        statistics.median(link.latency_ms for link in links),
    )


def chosen(ways: Sequence[Between], count: int) -> list[Between]:
    """Those to draw: all of few; else the fastest that join everybody, and the fastest of each group."""
    if count <= MOST_GROUPS_WHOLE:
        return list(ways)
    kept = set(_spanning(ways, count))
    for group in range(count):
        own = [way for way in ways if group in (way.one, way.other)]
        kept.update(own[-FASTEST_OF_EACH if count <= CROWD else -1 :])
    return [way for way in ways if way in kept]


def _spanning(ways: Sequence[Between], count: int) -> list[Between]:
    part = list(range(count))
    kept: list[Between] = []
    for way in reversed(ways):
        one, other = part[way.one], part[way.other]
        if one != other and way.both_mbps:
            kept.append(way)
            part = [one if number == other else number for number in part]
    return kept


def _mbps(topology: Topology, sources: Group, targets: Group) -> float:
    return statistics.median(topology.bandwidth_mbps[i][j] for i in sources.members for j in targets.members)

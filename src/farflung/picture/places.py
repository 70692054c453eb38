"""Where workers and sites stand in a picture: sites on a ring, workers on a ring of their own within."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farflung.plans import Topology

CROWD = 24
"""More groups than this stand close together."""

WORKER_RADIUS = 15.0
_BETWEEN_WORKERS = 62.0
_BETWEEN_SITES = 70.0
_BETWEEN_MANY = 30.0
_ALONE_RADIUS = 30.0


@dataclass(frozen=True)
class Spot:
    """A circle."""

    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Group:
    """Workers of one site, by their numbers; whoever has none stands alone."""

    name: str
    members: tuple[int, ...]
    spot: Spot
    workers: Mapping[int, Spot]


def groups(topology: Topology) -> list[Group]:
    """Every site with its place, the first at the top and the others clockwise, around the origin."""
    members: dict[str, list[int]] = {}
    for number, worker in enumerate(topology.workers):
        members.setdefault(f"site {worker.site}" if worker.site else f"worker {worker.id}", []).append(number)
    is_crowded = len(members) > CROWD
    radii = [_radius(len(inside), is_crowded) for inside in members.values()]
    found: list[Group] = []
    for inside, centre in zip(members.values(), _ring(radii), strict=True):
        first = topology.workers[inside[0]]
        workers = dict(zip(inside, _inside(centre, len(inside)), strict=True))
        found.append(Group(first.site or first.id, tuple(inside), centre, workers))
    return found


def _radius(count: int, is_crowded: bool) -> float:
    """Of a site with so many workers."""
    if count == 1:
        return WORKER_RADIUS if is_crowded else _ALONE_RADIUS
    return _worker_ring(count) + WORKER_RADIUS + 26


def _worker_ring(count: int) -> float:
    return 0.0 if count == 1 else max(_BETWEEN_WORKERS * 0.6, count * _BETWEEN_WORKERS / (2 * math.pi))


def _inside(centre: Spot, count: int) -> Sequence[Spot]:
    ring = _worker_ring(count)
    turns = [2 * math.pi * number / count - math.pi / 2 for number in range(count)]
    return [
        Spot(centre.x + ring * math.cos(turn), centre.y + ring * math.sin(turn), WORKER_RADIUS)
        for turn in turns
    ]


def _ring(radii: Sequence[float]) -> list[Spot]:
    """Circles of these radii side by side on a ring, each with room for its name."""
    if len(radii) == 1:
        return [Spot(0.0, 0.0, radii[0])]
    gap = 190.0 if len(radii) < 9 else _BETWEEN_SITES if len(radii) <= CROWD else _BETWEEN_MANY
    arcs = [2 * radius + gap for radius in radii]
    ring = max(sum(arcs) / (2 * math.pi), max(radii) + gap, 170.0)
    found, turn = [], -math.pi / 2
    for index, radius in enumerate(radii):
        if index:
            turn += math.pi * (arcs[index - 1] + arcs[index]) / sum(arcs)
        found.append(Spot(1.25 * ring * math.cos(turn), ring * math.sin(turn), radius))
    return found

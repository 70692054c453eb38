"""Random heterogeneous fleets: what planners are compared on. Any seed gives a fleet, equal seeds equal ones.

A fleet is made of places. A *home* is one device, or two, behind a line that is slower up than down; alone
there, a device shares it among all its links. A *laboratory* is two to eight devices on a LAN of 1 to 10
Gbit/s, a *room* four to sixteen equal ones at 10 Gbit/s. Two places are joined by what the slower of their
lines carries, less up to half (links: 8 Mbit/s to 10 Gbit/s), as far apart as they lie on the globe. Devices
do 2 to 80 TFLOP/s and have 6 to 80 GB. The submitter is where the line is fastest.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from farflung.plans import Topology, WorkerSpec

LEAST_WORKERS, MOST_WORKERS = 8, 64
LEAST_MBPS, MOST_MBPS = 8.0, 10_000.0
MEMORY_GB = (6, 8, 10, 12, 16, 24, 32, 48, 80)
EARTH_KM = 6371.0
KM_PER_MS = 200.0 / 1.4  # light in glass, on paths that are 1.4 times as long as the straight one


@dataclass(frozen=True)
class Device:
    """One device of a place."""

    tflops: float
    memory_gb: float


@dataclass(frozen=True)
class Place:
    """A site: its devices, LAN and line, where it lies in radians, and how far away its line's end is."""

    kind: str
    devices: tuple[Device, ...]
    inside_mbps: float
    inside_ms: float
    up_mbps: float
    down_mbps: float
    north: float
    east: float
    access_ms: float

    @property
    def is_home(self) -> bool:
        return self.kind == "home"


def random_fleet(seed: int, least: int = LEAST_WORKERS, most: int = MOST_WORKERS) -> Topology:
    """A fleet of `least` to `most` workers, log-uniformly many."""
    draw = random.Random(seed)
    count = round(_between(draw, least, most))
    places: list[Place] = []
    while (left := count - sum(len(place.devices) for place in places)) > 0:
        places.append(_place(draw, left))
    return _topology(draw, places, f"random-{seed}")


def sited_fleet(workers: int, sites: int, seed: int = 0) -> Topology:
    """A fleet of so many workers in so many places of about equal size, for measurements of growth."""
    draw = random.Random(seed)
    sizes = [workers // sites + (number < workers % sites) for number in range(sites)]
    places = [_of_kind(draw, "home" if size == 1 else "laboratory", size) for size in sizes]
    return _topology(draw, places, f"sited-{workers}-{sites}-{seed}")


def _between(draw: random.Random, least: float, most: float) -> float:
    """Log-uniform."""
    return math.exp(draw.uniform(math.log(least), math.log(most)))


def _place(draw: random.Random, most: int) -> Place:
    kind = draw.choices(["home", "laboratory", "room"], weights=[5, 4, 2])[0]
    size = {"home": draw.choice([1, 1, 1, 2]), "laboratory": draw.randint(2, 8), "room": draw.randint(4, 16)}[
        kind
    ]
    return _of_kind(draw, kind, min(size, most))


def _of_kind(draw: random.Random, kind: str, size: int) -> Place:
    north, east = math.asin(draw.uniform(-0.5, 0.9)), draw.uniform(-math.pi, math.pi)
    if kind == "home":
        devices = tuple(_device(draw, 2, 80) for _ in range(size))
        up = _between(draw, LEAST_MBPS, 200)
        down = up * _between(draw, 1, 10)
        return Place(kind, devices, 1000, 0.3, up, down, north, east, draw.uniform(3, 12))
    if kind == "laboratory":
        kinds = [_device(draw, 4, 80) for _ in range(draw.choice([1, 2, 3]))]
        devices = tuple(draw.choice(kinds) for _ in range(size))
        line = _between(draw, 100, 4000)
        return Place(kind, devices, draw.choice([1000, 2500, 10_000]), 0.2, line, line, north, east, 1.0)
    line = _between(draw, 500, MOST_MBPS)
    return Place(kind, (_device(draw, 15, 80),) * size, MOST_MBPS, 0.05, line, line, north, east, 0.5)


def _device(draw: random.Random, least: float, most: float) -> Device:
    tflops = _between(draw, least, most)
    usual = 6 + tflops * 0.45  # what is fast has more memory, by and large
    memory = min(
        [6, 8, 10, 12, 16, 24, 32, 48, 80], key=lambda size: abs(size - usual * _between(draw, 0.6, 1.7))
    )
    return Device(round(tflops, 1), memory)


def _topology(draw: random.Random, places: list[Place], name: str) -> Topology:
    where = [number for number, place in enumerate(places) for _ in place.devices]
    between = {
        (a, b): _between_places(draw, places[a], places[b])
        for a in range(len(places))
        for b in range(len(places))
        if a != b
    }

    def matrix(inside: list[float], of_pair: int) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(inside[a] if a == b else between[a, b][of_pair] for b in where) for a in where)

    return Topology(
        workers=tuple(_workers(places)),
        bandwidth_mbps=matrix([place.inside_mbps for place in places], 0),
        latency_ms=matrix([place.inside_ms for place in places], 1),
        name=name,
        title="Random places",
        source="benchmarks/random_fleets.py",
        submitter=_submitter(places),
    )


def _submitter(places: list[Place]) -> str:
    """The data lies where the line is fastest."""
    number = max(range(len(places)), key=lambda at: places[at].up_mbps)
    return f"{places[number].kind}-{number}-0"


def _workers(places: list[Place]) -> list[WorkerSpec]:
    return [
        WorkerSpec(
            id=f"{place.kind}-{number}-{device}",
            site=f"{place.kind}-{number}",
            tflops=spec.tflops,
            memory_gb=spec.memory_gb,
            up_mbps=place.up_mbps if place.is_home and len(place.devices) == 1 else None,
            down_mbps=place.down_mbps if place.is_home and len(place.devices) == 1 else None,
        )
        for number, place in enumerate(places)
        for device, spec in enumerate(place.devices)
    ]


def _between_places(draw: random.Random, a: Place, b: Place) -> tuple[float, float]:
    """Bandwidth and latency from `a` to `b`."""
    rate = min(a.up_mbps, b.down_mbps) * draw.uniform(0.5, 1)
    return max(LEAST_MBPS, min(MOST_MBPS, rate)), a.access_ms + b.access_ms + _km(a, b) / KM_PER_MS


def _km(a: Place, b: Place) -> float:
    cosine = math.sin(a.north) * math.sin(b.north)
    cosine += math.cos(a.north) * math.cos(b.north) * math.cos(a.east - b.east)
    return EARTH_KM * math.acos(max(-1.0, min(1.0, cosine)))

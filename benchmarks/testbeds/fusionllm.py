"""A fleet like FusionLLM's: 48 GPUs of five kinds of places, links from 8 Mbit/s to 10 Gbit/s.

arXiv 2410.12707 names the number of devices and the range of the links, not the links. The rule here is ours:

* two machine rooms of eight RTX 4090: 10 Gbit/s and 0.05 ms inside, a line of 1 Gbit/s;
* three laboratories of six RTX 3080: 1 Gbit/s and 0.2 ms inside, a line of 200 Mbit/s;
* fourteen homes of one RTX 3060, 3080 or 4090 in turn: home n sends 8 x (100/8)^(n/13) Mbit/s (8 to 100) and
  receives 2.5 times that, and all its links share this line.

Places stand in three regions in turn. One way is 5 ms inside a region and 20, 40 or 75 ms between two, and
5 ms more for each home. A pair in different places gets what the line of the slower end lets through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from farflung.plans import Scale, Topology, WorkerSpec
from farflung.plans.topology import Matrix


def matrix(count: int, entry: Callable[[int, int], float]) -> Matrix:
    """`entry(source, target)` for every ordered pair of different workers' numbers below `count`."""
    return tuple(
        tuple(0.0 if a == b else round(float(entry(a, b)), 6) for b in range(count)) for a in range(count)
    )


FACTOR = 0.1
"""Emulated devices and links are ten times slower than what they stand for: their ratio stays."""

BETWEEN_REGIONS_MS = {(0, 1): 20.0, (1, 2): 40.0, (0, 2): 75.0}


@dataclass(frozen=True)
class Card:
    """A graphics card: peak of its dense fp32, and memory."""

    tflops: float
    memory_gb: float


RTX_3060, RTX_3080, RTX_4090 = Card(12.7, 12), Card(29.8, 10), Card(82.6, 24)


@dataclass(frozen=True)
class Place:
    """A site with `devices` cards; a home has one, and a line that its links share."""

    name: str
    card: Card
    devices: int
    up_mbps: float
    down_mbps: float
    region: int
    inside_mbps: float = 0.0
    inside_ms: float = 0.0

    @property
    def is_home(self) -> bool:
        return self.devices == 1


def places() -> list[Place]:
    """Rooms, laboratories and homes, in this order."""
    rooms = [Place(f"room-{x}", RTX_4090, 8, 1000, 1000, n % 3, 10_000, 0.05) for n, x in enumerate("ab")]
    labs = [Place(f"lab-{x}", RTX_3080, 6, 200, 200, n % 3, 1000, 0.2) for n, x in enumerate("abc")]
    return rooms + labs + [_home(number) for number in range(14)]


def fusionllm_48() -> Topology:
    """The testbed `fusionllm-48`."""
    where = [place for place in places() for _ in range(place.devices)]
    return Topology(
        name="fusionllm-48",
        title="48 devices in 19 places, links of 8 Mbit/s to 10 Gbit/s like FusionLLM's, ten times slower",
        source="a rule of our own for the fleet that FusionLLM (arXiv 2410.12707) describes",
        workers=tuple(_worker(place, number) for place in places() for number in range(place.devices)),
        bandwidth_mbps=matrix(48, lambda a, b: FACTOR * _mbps(where[a], where[b])),
        latency_ms=matrix(48, lambda a, b: _ms(where[a], where[b])),
        queue_ms=200 / FACTOR,  # as many packets as 200 ms hold at the rates that are scaled
        scale=Scale(FACTOR, "all bandwidths, and the TFLOP/s of all devices"),
        note="For emulated devices (--emulate-devices).",
    )


def _home(number: int) -> Place:
    card = (RTX_3060, RTX_3080, RTX_4090)[number % 3]
    up_mbps = round(8 * (100 / 8) ** (number / 13), 1)
    return Place(f"home-{number}", card, 1, up_mbps, 2.5 * up_mbps, number % 3)


def _worker(place: Place, number: int) -> WorkerSpec:
    return WorkerSpec(
        id=place.name if place.is_home else f"{place.name}-{number}",
        site=place.name,
        tflops=round(FACTOR * place.card.tflops, 6),
        memory_gb=place.card.memory_gb,
        up_mbps=round(FACTOR * place.up_mbps, 6) if place.is_home else None,
        down_mbps=round(FACTOR * place.down_mbps, 6) if place.is_home else None,
    )


def _mbps(source: Place, target: Place) -> float:
    return source.inside_mbps if source == target else min(source.up_mbps, target.down_mbps)


def _ms(source: Place, target: Place) -> float:
    if source == target:
        return source.inside_ms
    low, high = sorted((source.region, target.region))
    homes = 5.0 * (source.is_home + target.is_home)
    return BETWEEN_REGIONS_MS.get((low, high), 5.0) + homes

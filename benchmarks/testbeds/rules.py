"""How each shipped testbed comes about. `python -m benchmarks.testbeds.rules` writes the files anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.testbeds.fusionllm import fusionllm_48, matrix

from benchmarks.testbeds import cities
from farflung.plans import Scale, Topology, WorkerSpec, write_topology
from farflung.plans.testbeds.catalogue import FOLDER, TESTBEDS

CORE_TFLOPS = 0.05
"""What a worker process gets of a CPU core: the testbeds train for real, on the machine they run on."""
CORE_GIGABYTES = 2.0

CITIES_FACTOR = 0.05
SPEEDRUN_FACTOR = 0.1


def four_homes() -> Topology:
    return _alike("four-homes", "Four homes, 8 Mbit/s and 50 ms between any two", _homes(4), 8, 50)


def two_sites() -> Topology:
    return Topology(
        name="two-sites",
        title="Two sites of two: 1000 Mbit/s and 0.5 ms inside, 8 Mbit/s and 50 ms between them",
        workers=_in_sites(2),
        bandwidth_mbps=matrix(4, lambda a, b: 1000 if a // 2 == b // 2 else 8),
        latency_ms=matrix(4, lambda a, b: 0.5 if a // 2 == b // 2 else 50),
    )


def three_sites() -> Topology:
    rates = {(0, 1): (100, 20), (1, 2): (50, 40), (0, 2): (20, 80)}

    def between(a: int, b: int) -> tuple[float, float]:
        site, other = sorted((a // 2, b // 2))
        return rates.get((site, other), (400, 1))

    return Topology(
        name="three-sites",
        title="Three sites of two: 400 Mbit/s and 1 ms inside; 100/50/20 Mbit/s and 20/40/80 ms between them",
        workers=_in_sites(3),
        bandwidth_mbps=matrix(6, lambda a, b: between(a, b)[0]),
        latency_ms=matrix(6, lambda a, b: between(a, b)[1]),
    )


def good_wan() -> Topology:
    return _alike(
        "good-wan", "Four homes on good lines, 100 Mbit/s and 20 ms between any two", _homes(4), 100, 20
    )


def lan() -> Topology:
    workers = tuple(_worker(f"box-{number}", "lab") for number in range(4))
    return _alike("lan", "Four boxes of one laboratory, 400 Mbit/s and 1 ms between any two", workers, 400, 1)


def eight_homes() -> Topology:
    up = (20, 10, 8, 40, 12, 10, 20, 8)
    down = (50, 50, 30, 50, 40, 25, 50, 20)
    to_the_exchange_ms = (10, 25, 40, 10, 60, 20, 15, 50)
    return Topology(
        name="eight-homes",
        title="Eight unequal homes: 8-40 Mbit/s up, 20-50 down, each line shared by all links of its home",
        workers=tuple(_worker(f"home-{n}", f"home-{n}", up[n], down[n]) for n in range(8)),
        bandwidth_mbps=matrix(8, lambda a, b: min(up[a], down[b])),
        latency_ms=matrix(8, lambda a, b: to_the_exchange_ms[a] + to_the_exchange_ms[b]),
    )


def dtfm_cities() -> Topology:
    return Topology(
        name="dtfm-cities",
        title="DT-FM's eight cities, one worker in each",
        source="DT-FM (arXiv 2206.01288), case 5 of its public scheduler configuration",
        workers=tuple(_worker(city, city) for city in cities.CITIES),
        bandwidth_mbps=matrix(8, lambda a, b: cities.bandwidth_mbps(a, b) * CITIES_FACTOR),
        latency_ms=matrix(8, cities.latency_ms),
        scale=Scale(
            CITIES_FACTOR, "bandwidths between DT-FM's cities (335-1160 Mbit/s), so that one switch holds"
        ),
        note="DT-FM has eight V100s of 125 TFLOP/s in a city; here it is one worker, a share of a core.",
    )


def nanogpt_200() -> Topology:
    stages = tuple(_worker(f"stage-{number}", f"stage-{number}") for number in range(8))
    plain = _alike("nanogpt-200", "Eight stages, 200 Mbit/s and 50 ms between any two", stages, 200, 50)
    return plain.slower(
        1 / SPEEDRUN_FACTOR, "the 200 Mbit/s of the Protocol NanoGPT speedrun, so that one switch holds"
    )


def nat() -> Topology:
    workers = tuple(
        _worker(f"home-{number}", f"home-{number}", behind_nat=number in (1, 2)) for number in range(4)
    )
    title = "Four homes, 50 Mbit/s and 20 ms; nobody can dial home-1 and home-2, which are behind NAT"
    return _alike("nat", title, workers, 50, 20)


RULES: dict[str, Callable[[], Topology]] = {
    "four-homes": four_homes,
    "two-sites": two_sites,
    "three-sites": three_sites,
    "good-wan": good_wan,
    "lan": lan,
    "eight-homes": eight_homes,
    "dtfm-cities": dtfm_cities,
    "fusionllm-48": fusionllm_48,
    "nanogpt-200": nanogpt_200,
    "nat": nat,
}


def _alike(name: str, title: str, workers: Sequence[WorkerSpec], mbps: float, ms: float) -> Topology:
    """Every pair has the same bandwidth and latency."""
    return Topology(
        name=name,
        title=title,
        workers=tuple(workers),
        bandwidth_mbps=matrix(len(workers), lambda a, b: mbps),
        latency_ms=matrix(len(workers), lambda a, b: ms),
    )


def _homes(count: int) -> tuple[WorkerSpec, ...]:
    return tuple(_worker(f"home-{number}", f"home-{number}") for number in range(count))


def _in_sites(sites: int) -> tuple[WorkerSpec, ...]:
    """Two workers in each site: a-0, a-1, b-0, ..."""
    return tuple(_worker(f"{letter}-{n}", f"site-{letter}") for letter in "abc"[:sites] for n in range(2))


def _worker(
    id: str, site: str, up_mbps: float | None = None, down_mbps: float | None = None, behind_nat: bool = False
) -> WorkerSpec:
    return WorkerSpec(id, site, CORE_TFLOPS, CORE_GIGABYTES, up_mbps, down_mbps, behind_nat)


if __name__ == "__main__":
    for testbed in TESTBEDS:
        write_topology(RULES[testbed](), FOLDER / f"{testbed}.json")

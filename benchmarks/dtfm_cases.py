"""DT-FM's five network cases (arXiv 2206.01288), 64 GPUs each, by the rules of its public configuration."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from benchmarks.testbeds.cities import CITIES, bandwidth_mbps, latency_ms
from numpy.typing import NDArray

from farflung.plans import Topology, WorkerSpec

Values = NDArray[np.float64]
TFLOPS, MEMORY_GB = 125.0, 16.0


def case(number: int) -> Topology:
    """DT-FM's case 1 to 5; raises KeyError for another number."""
    return _CASES[number]()


def instances() -> Topology:
    """One data centre: eight instances of eight GPUs."""
    bandwidth = np.where(np.eye(8, dtype=bool), 100_000.0, 3125.0)
    sites = [f"instance-{number // 8}" for number in range(64)]
    return sited("one data centre: eight 8-GPU instances", sites, np.zeros((8, 8)), bandwidth)


def spot() -> Topology:
    """One data centre: eight spot instances of four GPUs, and 32 GPUs that stand alone."""
    bandwidth = np.where(np.eye(40, dtype=bool), 100_000.0, 1250.0)
    sites = [f"spot-{number // 4}" for number in range(32)] + [f"alone-{number}" for number in range(32)]
    return sited("one data centre with spot instances", sites, np.zeros((40, 40)), bandwidth)


def universities(each: int = 32) -> Topology:
    """Two universities with `each` GPUs."""
    latency, bandwidth = np.array([[1.0, 11.0], [11.0, 1.0]]), np.array([[5000.0, 1120.0], [1120.0, 5000.0]])
    return sited("two universities", ["Ohio"] * each + ["Virginia"] * each, latency, bandwidth)


def regional() -> Topology:
    """Four regions of one country with sixteen GPUs each."""
    latency = np.array([[5, 67, 59, 11], [67, 5, 12, 49], [59, 12, 5, 52], [11, 49, 52, 5]], float)
    gbps = np.array(
        [[2, 1.15, 1.05, 1.12], [1.15, 2, 1.25, 1.1], [1.05, 1.25, 2, 1.02], [1.12, 1.1, 1.02, 2]]
    )
    sites = [name for name in ("Virginia", "Oregon", "California", "Ohio") for _ in range(16)]
    return sited("regional: four regions of sixteen GPUs", sites, latency, gbps * 1000)


def worldwide() -> Topology:
    """Eight cities round the world with eight GPUs each."""
    latency, bandwidth = np.full((8, 8), 5.0), np.full((8, 8), 2000.0)
    for one in range(8):
        for other in range(8):
            if one != other:
                latency[one, other] = latency_ms(one, other)
                bandwidth[one, other] = bandwidth_mbps(one, other)
    sites = [city for city in CITIES for _ in range(8)]
    return sited("world-wide: eight cities, eight GPUs each", sites, latency, bandwidth)


def sited(title: str, sites: list[str], latency_ms: Values, bandwidth_mbps: Values) -> Topology:
    """A topology of workers at sites, by values sites x sites; the diagonal is for workers of one site."""
    numbers = {site: number for number, site in enumerate(dict.fromkeys(sites))}
    at = np.array([numbers[site] for site in sites])
    return Topology(
        workers=tuple(WorkerSpec(f"w{n}", site, TFLOPS, MEMORY_GB) for n, site in enumerate(sites)),
        latency_ms=tuple(map(tuple, latency_ms[np.ix_(at, at)].tolist())),
        bandwidth_mbps=tuple(map(tuple, bandwidth_mbps[np.ix_(at, at)].tolist())),
        title=title,
        source="DT-FM (arXiv 2206.01288)",
    )


_CASES: dict[int, Callable[[], Topology]] = {
    1: instances,
    2: spot,
    3: universities,
    4: regional,
    5: worldwide,
}

"""Topologies for the grid's tests, and every grid there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from benchmarks.dtfm_grid import Grid
from farflung.plans import Topology, WorkerSpec


def topology(latency_ms: np.ndarray, bandwidth_mbps: np.ndarray) -> Topology:
    """Workers that declare no site."""
    return Topology(
        workers=tuple(WorkerSpec(f"w{n}", "", 1.0, 1.0) for n in range(len(latency_ms))),
        latency_ms=tuple(map(tuple, latency_ms.tolist())),
        bandwidth_mbps=tuple(map(tuple, bandwidth_mbps.tolist())),
    )


def random_topology(count: int, seed: int, noise: float = 0.5, asymmetric: bool = True) -> Topology:
    """Workers at random sites, with noise on every entry."""
    rng = np.random.default_rng(seed)
    sites = int(rng.integers(1, count + 1))
    site = rng.integers(0, sites, count)
    gbps = rng.uniform(0.1, 5.0, (sites, sites))
    latency = rng.uniform(1.0, 200.0, (sites, sites))
    np.fill_diagonal(gbps, 10.0)
    np.fill_diagonal(latency, 1.0)
    spread = rng.uniform(1 - noise, 1 + noise, (2, count, count))
    gbps, latency = gbps[np.ix_(site, site)] * spread[0], latency[np.ix_(site, site)] * spread[1]
    if not asymmetric:
        gbps, latency = np.minimum(gbps, gbps.T), np.maximum(latency, latency.T)
    return topology(latency, gbps * 1000)


def all_grids(stages: int, replicas: int) -> Iterator[Grid]:
    """Every placement up to the order of the columns: the first row ascends."""
    for order in itertools.permutations(range(stages * replicas)):
        rows = tuple(order[at : at + replicas] for at in range(0, len(order), replicas))
        if list(rows[0]) == sorted(rows[0]):
            yield rows

"""Topologies for the grid's tests: DT-FM's five cases by their published rules, and random ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from farflung.plan import Topology, WorkerSpec
from farflung.planner.grid import Grid


def topology(latency_ms: np.ndarray, bandwidth_mbps: np.ndarray) -> Topology:
    """Workers that declare no site."""
    return Topology(
        workers=tuple(WorkerSpec(f"w{n}", "", 1.0, 1.0) for n in range(len(latency_ms))),
        latency_ms=tuple(map(tuple, latency_ms.tolist())),
        bandwidth_mbps=tuple(map(tuple, bandwidth_mbps.tolist())),
    )


def blocks(site: np.ndarray, latency_ms: np.ndarray, bandwidth_mbps: np.ndarray) -> Topology:
    """Workers at sites, with values sites x sites, the diagonal for workers of one site."""
    return topology(latency_ms[np.ix_(site, site)], bandwidth_mbps[np.ix_(site, site)])


def instances() -> Topology:
    """Case 1: a data centre with eight instances of eight GPUs."""
    same = np.eye(8, dtype=bool)
    return blocks(np.repeat(np.arange(8), 8), np.zeros((8, 8)), np.where(same, 100_000.0, 3125.0))


def spot() -> Topology:
    """Case 2: a data centre with eight spot instances of four GPUs, and 32 GPUs that stand alone."""
    site = np.concatenate([np.repeat(np.arange(8), 4), np.arange(8, 40)])
    bandwidth = np.where(np.eye(40, dtype=bool), 100_000.0, 1250.0)
    return blocks(site, np.zeros((40, 40)), bandwidth)


def universities(each: int = 32) -> Topology:
    """Case 3: two universities."""
    return blocks(
        np.repeat(np.arange(2), each),
        np.array([[1.0, 11.0], [11.0, 1.0]]),
        np.array([[5000.0, 1120.0], [1120.0, 5000.0]]),
    )


def regional() -> Topology:
    """Case 4: sixteen GPUs each in Virginia, Oregon, California and Ohio."""
    latency = np.array([[5, 67, 59, 11], [67, 5, 12, 49], [59, 12, 5, 52], [11, 49, 52, 5]], float)
    gbps = np.array(
        [[2, 1.15, 1.05, 1.12], [1.15, 2, 1.25, 1.1], [1.05, 1.25, 2, 1.02], [1.12, 1.1, 1.02, 2]]
    )
    return blocks(np.repeat(np.arange(4), 16), latency, gbps * 1000)


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

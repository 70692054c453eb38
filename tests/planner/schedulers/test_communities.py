from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from farflung.planner.schedulers.opfence.communities import communities
from farflung.plans import Topology, WorkerSpec


def fleet(bandwidth_mbps: np.ndarray) -> Topology:
    count = len(bandwidth_mbps)
    return Topology(
        workers=tuple(WorkerSpec(f"w{n}", "anywhere", 1.0, 1.0) for n in range(count)),
        latency_ms=((1.0,) * count,) * count,
        bandwidth_mbps=tuple(map(tuple, bandwidth_mbps.tolist())),
    )


def sites(sizes: list[int], seed: int, inside: float = 1000.0, outside: float = 50.0) -> np.ndarray:
    """Sites with their workers shuffled, 30 % of noise on every entry; the last row says the site."""
    rng = np.random.default_rng(seed)
    site = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    mean = np.where(site[:, None] == site[None, :], inside, outside)
    return np.vstack([mean * rng.uniform(0.7, 1.3, mean.shape), site])


@pytest.mark.parametrize("sizes", [[5, 11], [8] * 8, [1, 2, 3, 10], [25] * 40, [25] * 36 + [5] * 20])
def test_sites_are_found_in_noise(sizes: list[int]) -> None:
    *bandwidth, site = sites(sizes, 3)
    found = communities(fleet(np.array(bandwidth)))
    assert sorted(map(list, found)) == sorted(np.flatnonzero(site == s).tolist() for s in range(len(sizes)))
    assert list(found) == sorted(found)


def test_one_worker_and_one_community() -> None:
    assert communities(fleet(np.zeros((1, 1)))) == ((0,),)
    assert communities(fleet(np.full((6, 6), 100.0))) == (tuple(range(6)),)
    assert communities(fleet(np.full((300, 300), 100.0))) == (tuple(range(300)),)


def test_the_first_pass_costs_no_modularity() -> None:
    """What 200 workers get by way of the contraction is as modular as what networkx finds alone."""
    rng = np.random.default_rng(5)
    weights = rng.uniform(50, 150, (200, 200))
    ours = communities(fleet(weights))
    graph = nx.from_numpy_array(np.triu(np.minimum(weights, weights.T), 1))
    theirs = nx.community.louvain_communities(graph, seed=0)
    assert nx.community.modularity(graph, ours) >= 0.97 * nx.community.modularity(graph, theirs)


def test_a_slow_site_beside_fast_ones() -> None:
    """Modularity alone puts the homes and the slow site together."""
    bandwidth = np.full((24, 24), 40.0)
    for start, inside in ((0, 10_000.0), (8, 1_000.0), (16, 41.0)):
        bandwidth[start : start + 8, start : start + 8] = inside
    assert communities(fleet(bandwidth))[:2] == (tuple(range(8)), tuple(range(8, 16)))


def test_equal_lines_are_no_sites() -> None:
    """Homes behind lines of their own: the rate of a link is that of the slower line."""
    lines = np.array([10.0, 50.0, 10.0, 50.0, 20.0, 20.0])
    assert communities(fleet(np.minimum.outer(lines, lines))) == (tuple(range(6)),)


def test_an_isolated_worker_is_alone() -> None:
    bandwidth = np.full((9, 9), 800.0)
    bandwidth[4, :] = 20.0
    assert communities(fleet(bandwidth)) == ((0, 1, 2, 3, 5, 6, 7, 8), (4,))


def test_equal_seeds_give_equal_communities() -> None:
    weights = np.random.default_rng(1).lognormal(3, 1, (180, 180))
    assert communities(fleet(weights), 7) == communities(fleet(weights), 7)

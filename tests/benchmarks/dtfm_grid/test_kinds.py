from __future__ import annotations

import numpy as np
from benchmarks.dtfm_cases import spot, worldwide
from benchmarks.dtfm_grid.kinds import MOST_KINDS, kinds_of
from tests.planner.schedulers.evolutionary.cases import random_topology, topology

from benchmarks.dtfm_grid import GridCosts, GridObjective
from farflung.plans import Topology


def sizes(fleet: Topology) -> list[list[int]]:
    costs = GridCosts.of(fleet, GridObjective(8, len(fleet.workers) // 8))
    return [sorted(len(group) for group in kinds.members) for kinds in kinds_of(costs)]


def test_workers_that_stand_alone_alike_are_one_kind() -> None:
    assert [4] * 8 + [32] in sizes(spot())


def test_cities_are_found_in_noise() -> None:
    fleet, rng = worldwide(), np.random.default_rng(2)
    latency, bandwidth = np.array(fleet.latency_ms), np.array(fleet.bandwidth_mbps)
    spread = rng.uniform(0.85, 1.15, (2, 64, 64))
    assert [8] * 8 in sizes(topology(latency * spread[0], bandwidth * spread[1]))


def test_everybody_has_a_kind_and_kinds_are_few() -> None:
    rng = np.random.default_rng(3)
    shapeless = topology(rng.uniform(1, 200, (64, 64)), rng.uniform(50, 5000, (64, 64)))
    for fleet in (shapeless, random_topology(64, 1), random_topology(8, 2)):
        costs = GridCosts.of(fleet, GridObjective(8, len(fleet.workers) // 8))
        for kinds in kinds_of(costs):
            assert len(kinds.members) <= MOST_KINDS
            placed = sorted(worker for group in kinds.members for worker in group)
            assert placed == list(range(len(fleet.workers)))

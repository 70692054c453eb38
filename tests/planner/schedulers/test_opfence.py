from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.plans import require_valid
from tests.planner.workloads import UNIT, chain_workload, random_topology, random_workload

from farflung.errors import PlanError
from farflung.planner.assignment import Options, Scheduler
from farflung.planner.devices import Devices
from farflung.planner.schedulers.opfence import opfence, opfence_plus
from farflung.planner.schedulers.opfence.communities import communities
from farflung.planner.schedulers.opfence.scheduler import fenced_order
from farflung.plans import Topology

BOTH = pytest.mark.parametrize("scheduler", [opfence, opfence_plus], ids=["op-fence", "plus"])


def without_lines(topology: Topology) -> Topology:
    alone = [msgspec.structs.replace(worker, up_mbps=None, down_mbps=None) for worker in topology.workers]
    return msgspec.structs.replace(topology, workers=tuple(alone))


def three_sites(seed: int) -> Topology:
    """Nine workers dealt to three sites: 40 Mbit/s inside, 1 Mbit/s between."""
    topology = without_lines(random_topology(seed, 9, memory=1e6))
    site = np.random.default_rng(seed).permutation([0, 0, 0, 1, 1, 1, 2, 2, 2])
    rates = tuple(tuple(40.0 if site[a] == site[b] else 1.0 for b in range(9)) for a in range(9))
    workers = tuple(
        msgspec.structs.replace(worker, site=f"site{site[number]}")
        for number, worker in enumerate(topology.workers)
    )
    return msgspec.structs.replace(topology, workers=workers, bandwidth_mbps=rates)


@BOTH
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 6), ties=st.booleans())
def test_plans_are_valid_and_repeat(scheduler: Scheduler, seed: int, count: int, ties: bool) -> None:
    workload, topology = random_workload(seed, 12, ties), random_topology(seed, count)
    try:
        schedule = scheduler(topology, workload, Options())
    except PlanError as error:
        assert "missing" in str(error) or "fewer workers" in str(error)
        return
    require_valid(schedule, topology)
    assert schedule == scheduler(topology, workload, Options())


@pytest.mark.parametrize("seed", range(6))
def test_slow_links_are_crossed_as_seldom_as_possible(seed: int) -> None:
    topology = three_sites(seed)
    devices = Devices.of(topology)
    order = fenced_order(devices, communities(topology), (UNIT, UNIT))
    sites = [topology.workers[number].site for number in order]
    assert sorted(order) == list(range(9))
    assert sum(a != b for a, b in itertools.pairwise(sites)) == 2


def test_gateways_stand_at_the_ends_of_a_community() -> None:
    """Two sites joined by one good line, between workers 1 and 3."""
    rates = np.full((6, 6), 1.0)
    rates[:3, :3] = rates[3:, 3:] = 100.0
    rates[1, 3] = rates[3, 1] = 5.0
    topology = msgspec.structs.replace(
        without_lines(random_topology(1, 6)), bandwidth_mbps=tuple(map(tuple, rates.tolist()))
    )
    order = fenced_order(Devices.of(topology), [[0, 1, 2], [3, 4, 5]], (UNIT, UNIT))
    assert {order[2], order[3]} == {1, 3}


@BOTH
def test_segments_are_as_long_as_devices_are_fast(scheduler: Scheduler) -> None:
    """Fast links: the bottleneck is the compute time of unequal devices."""
    workload = chain_workload([1.0] * 60, [0] * 59)
    topology = three_sites(1)
    plan = scheduler(topology, workload, Options()).plan
    tflops = {worker.id: worker.tflops for worker in topology.workers}
    seconds = [3 * p.flops / (tflops[p.worker] * 1e12) for p in plan.placements]
    ideal = 180 / (sum(tflops.values()) * 1e12)
    assert max(seconds) < ideal + 3 / (min(tflops.values()) * 1e12)


def test_workers_behind_slow_lines_are_left_out_by_plus_alone() -> None:
    """Little work and large values: all of it stays in one site."""
    workload = chain_workload([1.0] * 12, [UNIT * 50] * 11)
    topology = three_sites(2)
    used = opfence_plus(topology, workload, Options()).plan.workers()
    assert len({worker.site for worker in topology.workers if worker.id in used}) == 1
    assert sorted(opfence(topology, workload, Options()).plan.workers()) == sorted(topology.ids)


@BOTH
def test_as_many_workers_as_asked_for(scheduler: Scheduler) -> None:
    workload, topology = chain_workload([1.0] * 12, [1] * 11), three_sites(3)
    for count in range(1, 10):
        schedule = scheduler(topology, workload, Options(workers=count))
        assert len(schedule.plan.workers()) == count
        require_valid(schedule, topology)
    with pytest.raises(PlanError, match="10 workers were asked for, 9 can"):
        scheduler(topology, workload, Options(workers=10))


@BOTH
def test_a_model_too_large(scheduler: Scheduler) -> None:
    workload, topology = random_workload(5, 10), random_topology(5, 3, memory=20.0)
    with pytest.raises(PlanError, match=r"\d GB are missing"):
        scheduler(topology, workload, Options())

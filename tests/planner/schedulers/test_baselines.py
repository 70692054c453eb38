from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.plans import require_valid
from tests.planner.workloads import chain_workload, random_topology, random_workload

from farflung.errors import PlanError
from farflung.planner.assignment import Options, Scheduler
from farflung.planner.schedulers.baselines import equal_compute, equal_count

BOTH = pytest.mark.parametrize("scheduler", [equal_count, equal_compute])


@BOTH
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), ties=st.booleans())
def test_plans_are_valid_and_repeat(scheduler: Scheduler, seed: int, count: int, ties: bool) -> None:
    workload, topology = random_workload(seed, 12, ties), random_topology(seed, count)
    try:
        schedule = scheduler(topology, workload, Options())
    except PlanError as error:
        assert "missing" in str(error) or "fewer workers" in str(error)
        return
    require_valid(schedule, topology)
    assert schedule == scheduler(topology, workload, Options())


def test_operators_are_counted_or_weighed() -> None:
    """One node has half of the work: alone for one baseline, with five others for the other."""
    workload = chain_workload([10.0, *[1.0] * 10], [1] * 10)
    topology = random_topology(1, 2, memory=1e6)
    assert equal_compute(topology, workload, Options()).assignment.cuts == (1,)
    assert equal_count(topology, workload, Options()).assignment.cuts in ((5,), (6,))


@BOTH
def test_of_equal_cuts_the_cheapest_is_taken(scheduler: Scheduler) -> None:
    workload = chain_workload([1.0, 1.0, 0.0, 0.0, 1.0, 1.0], [9, 9, 1, 9, 9])
    assert scheduler(random_topology(1, 2, memory=1e6), workload, Options()).assignment.cuts == (3,)


@BOTH
def test_the_first_workers_are_used(scheduler: Scheduler) -> None:
    workload, topology = chain_workload([1.0] * 6, [1] * 5), random_topology(3, 8, memory=1e6)
    assert scheduler(topology, workload, Options(workers=3)).plan.workers() == topology.ids[:3]
    assert scheduler(topology, workload, Options()).plan.workers() == topology.ids[:6]
    with pytest.raises(PlanError, match="9 workers were asked for, 8 can all reach each other"):
        scheduler(topology, workload, Options(workers=9))
    with pytest.raises(PlanError, match="at most 6 segments, 7 were asked for"):
        scheduler(topology, workload, Options(workers=7))


@BOTH
def test_memory_goes_before_balance(scheduler: Scheduler) -> None:
    workload = chain_workload([1.0] * 8, [1] * 7)
    topology = random_topology(3, 2, memory=1e6)
    small = msgspec.structs.replace(topology.workers[0], memory_gb=(workload.memory_bytes(0, 3, 2) + 1) / 1e9)
    tight = msgspec.structs.replace(topology, workers=(small, topology.workers[1]))
    (cut,) = scheduler(tight, workload, Options(window=2)).assignment.cuts
    assert cut == 3


@BOTH
def test_a_worker_too_small_for_anything_is_left_out(scheduler: Scheduler) -> None:
    topology = random_topology(3, 3, memory=1e6)
    small = msgspec.structs.replace(topology.workers[1], memory_gb=1e-9)
    tight = msgspec.structs.replace(topology, workers=(topology.workers[0], small, topology.workers[2]))
    workload = chain_workload([1.0] * 8, [1] * 7)
    assert scheduler(tight, workload, Options()).plan.workers() == ["w0", "w2"]
    with pytest.raises(PlanError, match=r"w1 has .* GB, its part needs .* GB; .* GB are missing in total"):
        scheduler(tight, workload, Options(workers=3))


@BOTH
def test_a_model_too_large_for_all_memory(scheduler: Scheduler) -> None:
    workload, topology = random_workload(5, 10), random_topology(5, 3, memory=20.0)
    needed = workload.memory_bytes(0, 10, 1)
    held = sum(worker.memory_gb for worker in topology.workers) * 1e9
    with pytest.raises(PlanError, match=f"{(needed - held) / 1e9:.2g} GB are missing"):
        scheduler(topology, workload, Options())


@BOTH
def test_one_worker_alone(scheduler: Scheduler) -> None:
    schedule = scheduler(random_topology(1, 1, memory=1e6), random_workload(1, 9), Options())
    assert schedule.assignment.cuts == () and schedule.plan.workers() == ["w0"]


@BOTH
def test_a_topology_in_two_parts(scheduler: Scheduler) -> None:
    topology = random_topology(1, 4, memory=1e6)
    sides = [{0, 2}, {1, 3}]
    rates = tuple(
        tuple(rate if any({a, b} <= side for side in sides) else 0.0 for b, rate in enumerate(row))
        for a, row in enumerate(topology.bandwidth_mbps)
    )
    schedule = scheduler(
        msgspec.structs.replace(topology, bandwidth_mbps=rates), random_workload(1, 12), Options()
    )
    used = {topology.ids.index(worker) for worker in schedule.plan.workers()}
    assert used in sides
    assert any("left out" in note for note in schedule.notes)


@BOTH
def test_nothing_to_train(scheduler: Scheduler) -> None:
    frozen = dataclasses.replace(chain_workload([1.0] * 4, [1] * 3), trainable_bytes=np.zeros(4))
    with pytest.raises(PlanError, match="no trainable parameter"):
        scheduler(random_topology(1, 2, memory=1e6), frozen, Options())

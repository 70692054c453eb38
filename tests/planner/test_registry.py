"""What every scheduler must keep, whatever it does inside."""

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
from farflung.planner.registry import SCHEDULERS
from farflung.plans import Topology

QUICK = Options(budget=60)

EACH = pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)


@pytest.mark.cases(4)
@pytest.mark.slow
@EACH
@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), ties=st.booleans())
def test_plans_are_valid_and_repeat(scheduler: Scheduler, seed: int, count: int, ties: bool) -> None:
    workload, topology = random_workload(seed, 10, ties), random_topology(seed, count)
    try:
        schedule = scheduler(topology, workload, QUICK)
    except PlanError as error:
        assert "missing" in str(error) or "fewer workers" in str(error)
        return
    require_valid(schedule, topology)
    again = scheduler(topology, workload, QUICK)
    assert (again.assignment, again.step_seconds) == (schedule.assignment, schedule.step_seconds)


@EACH
def test_one_worker_alone(scheduler: Scheduler) -> None:
    schedule = scheduler(random_topology(1, 1, memory=1e6), random_workload(1, 9), QUICK)
    assert schedule.assignment.cuts == () and schedule.plan.workers() == ["w0"]


@EACH
def test_a_topology_in_two_parts(scheduler: Scheduler) -> None:
    """Links of no bandwidth: the plan stays in one part and says who is left out."""
    topology = random_topology(1, 4, memory=1e6)
    sides = [{0, 2}, {1, 3}]
    rates = tuple(
        tuple(rate if any({a, b} <= side for side in sides) else 0.0 for b, rate in enumerate(row))
        for a, row in enumerate(topology.bandwidth_mbps)
    )
    left_out = msgspec.structs.replace(topology, bandwidth_mbps=rates)
    schedule = scheduler(left_out, random_workload(1, 12), QUICK)
    used = {topology.ids.index(worker) for worker in schedule.plan.workers()}
    (rest,) = [side for side in sides if not used & side]
    assert any(all(topology.ids[a] in note for a in rest) for note in schedule.notes)


@EACH
def test_a_model_too_large_for_all_memory(scheduler: Scheduler) -> None:
    workload, topology = random_workload(5, 10), random_topology(5, 3, memory=20.0)
    needed = workload.memory_bytes(0, 10, 1)
    held = sum(worker.memory_gb for worker in topology.workers) * 1e9
    with pytest.raises(PlanError, match=f"{(needed - held) / 1e9:.2g} GB are missing"):
        scheduler(topology, workload, QUICK)


@EACH
def test_no_worker_is_large_enough_for_the_largest_operator(scheduler: Scheduler) -> None:
    """Memory enough in sum, but one operator fits nowhere: which worker lacks how much is told."""
    sizes = np.array([1.0, 1000.0, 1.0])
    workload = dataclasses.replace(
        chain_workload([1.0] * 3, [1] * 2),
        state_bytes=sizes,
        parameter_bytes=sizes,
        trainable_bytes=sizes,
        kept_bytes=2 * sizes,
    )
    topology = random_topology(2, 3, memory=1.0)
    workers = tuple(msgspec.structs.replace(w, memory_gb=3000e-9) for w in topology.workers)
    with pytest.raises(
        PlanError, match=r"w\d has 3e-06 GB, its part needs [\de.-]+ GB; [\de.-]+ GB are missing"
    ):
        scheduler(msgspec.structs.replace(topology, workers=workers), workload, QUICK)


@EACH
def test_a_worker_too_small_for_anything_is_left_out(scheduler: Scheduler) -> None:
    topology = random_topology(3, 3, memory=1e6)
    small = msgspec.structs.replace(topology.workers[1], memory_gb=1e-9)
    tight = msgspec.structs.replace(topology, workers=(topology.workers[0], small, topology.workers[2]))
    assert "w1" not in scheduler(tight, chain_workload([1.0] * 8, [1] * 7), QUICK).plan.workers()


@EACH
def test_nothing_to_train(scheduler: Scheduler) -> None:
    frozen = dataclasses.replace(chain_workload([1.0] * 4, [1] * 3), trainable_bytes=np.zeros(4))
    with pytest.raises(PlanError, match="no trainable parameter"):
        scheduler(random_topology(1, 2, memory=1e6), frozen, QUICK)


@EACH
@pytest.mark.parametrize("count", [1, 2, 3])
def test_as_many_workers_as_asked_for(scheduler: Scheduler, count: int) -> None:
    workload, topology = chain_workload([1.0] * 9, [1] * 8), random_topology(4, 3, memory=1e6)
    schedule = scheduler(topology, workload, dataclasses.replace(QUICK, workers=count))
    assert len(schedule.plan.workers()) == count


@EACH
def test_more_workers_than_there_are(scheduler: Scheduler) -> None:
    workload, topology = chain_workload([1.0] * 9, [1] * 8), random_topology(4, 3, memory=1e6)
    with pytest.raises(PlanError, match="4 workers were asked for, 3 can all reach each other"):
        scheduler(topology, workload, dataclasses.replace(QUICK, workers=4))


@EACH
def test_recomputation_makes_room(scheduler: Scheduler) -> None:
    """Tapes that fit nowhere: only plans that recompute do."""
    workload = dataclasses.replace(chain_workload([1.0] * 8, [1] * 7), tape_bytes=np.full(8, 1000.0))
    topology = _with_memory(random_topology(6, 2), 6500.0)
    narrow = dataclasses.replace(QUICK, window=4)
    with pytest.raises(PlanError):
        scheduler(topology, workload, narrow)
    schedule = scheduler(topology, workload, dataclasses.replace(narrow, recompute=True))
    require_valid(schedule, topology)
    assert any(placement.recompute for placement in schedule.plan.placements)


def _with_memory(topology: Topology, bytes: float) -> Topology:
    workers = tuple(msgspec.structs.replace(w, memory_gb=bytes / 1e9) for w in topology.workers)
    return msgspec.structs.replace(topology, workers=workers)

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.workloads import random_topology, random_workload

from farflung.errors import PlanError
from farflung.plan import Topology
from farflung.planner.assignment import Options, Schedule, memory_of
from farflung.planner.auto import auto
from farflung.simulator import simulate
from farflung.workload import Workload

FEW = Options(budget=60)


def require_valid(schedule: Schedule, topology: Topology) -> None:
    """Every node once, in order; memory kept; each parameter on one worker; a parameter for each segment."""
    workload, assignment = schedule.workload, schedule.assignment
    ranges = assignment.ranges(len(workload))
    assert all(start < stop for start, stop in ranges)
    assert all(workload.legal[cut] for cut in assignment.cuts)
    assert all(workload.owned[stop] > workload.owned[start] for start, stop in ranges)
    replicas = {len(workers) for workers in assignment.workers}
    assert replicas == {len(assignment.shares) or 1}
    assert sum(assignment.shares) in (0, assignment.microbatches)
    for uses in workload.ties:
        holders = {
            workers
            for (start, stop), workers in zip(ranges, assignment.workers, strict=True)
            if any(start <= at < stop for at in uses)
        }
        assert len(holders) == 1
    used = {name for workers in assignment.workers for name in workers}
    for worker in topology.workers:
        if worker.id in used:
            assert memory_of(workload, assignment, worker.id) <= worker.memory_gb * 1e9
    assert all(a != b for a, b in pairwise(assignment.workers))


def planned(topology: Topology, workload: Workload, options: Options = FEW) -> Schedule | None:
    try:
        return auto(topology, workload, options)
    except PlanError:
        return None


def case(seed: int) -> tuple[Topology, Workload]:
    return random_topology(seed, 1 + seed % 7), random_workload(seed, 4 + seed % 11, ties=seed % 3 == 0)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_plans_are_valid_and_what_the_simulator_says(seed: int) -> None:
    topology, workload = case(seed)
    schedule = planned(topology, workload)
    if schedule is not None:
        require_valid(schedule, topology)
        assert simulate(schedule.plan, topology).step_seconds == pytest.approx(schedule.step_seconds)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_equal_inputs_seed_and_budget_give_an_equal_plan(seed: int) -> None:
    topology, workload = case(seed)
    first, second = planned(topology, workload), planned(topology, workload)
    assert (first and first.assignment) == (second and second.assignment)

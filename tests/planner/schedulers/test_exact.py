from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.planner.plans import require_valid
from tests.planner.workloads import chain_workload, random_topology, random_workload

from farflung.errors import PlanError
from farflung.planner.assignment import Assignment, Options, memory_of, plan_of
from farflung.planner.bounds.gates import certain_crossing
from farflung.planner.schedulers.exact import exact
from farflung.planner.schedulers.opfence import opfence_plus
from farflung.plans import Topology
from farflung.simulator import simulate
from farflung.workload import Workload


def all_plans(workload: Workload, topology: Topology, window: int) -> Iterator[Assignment]:
    """Every plan with one segment a worker."""
    legal = [at for at in range(1, len(workload)) if workload.legal[at]]
    memory = {worker.id: worker.memory_gb * 1e9 for worker in topology.workers}
    for size in range(1, len(topology.workers) + 1):
        for workers in itertools.permutations(topology.ids, size):
            for cuts in itertools.combinations(legal, size - 1):
                ranges = list(itertools.pairwise([0, *cuts, len(workload)]))
                found = Assignment(cuts, tuple((w,) for w in workers), workload.microbatches, window)
                if all(workload.parameters[a:b].sum() for a, b in ranges) and all(
                    memory_of(workload, found, worker) <= memory[worker] for worker in workers
                ):
                    yield found


def simulated(workload: Workload, topology: Topology, found: Assignment) -> float:
    return simulate(plan_of(workload, found), topology).step_seconds


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 3), window=st.sampled_from([None, 1, 2]))
def test_no_plan_of_all_is_simulated_below_the_bound(seed: int, count: int, window: int | None) -> None:
    workload, topology = random_workload(seed, 6), random_topology(seed, count, memory=500.0)
    windows = [window] if window else range(1, workload.microbatches + 1)
    steps = [
        simulated(workload, topology, plan) for w in windows for plan in all_plans(workload, topology, w)
    ]
    if not steps:
        with pytest.raises(PlanError, match="missing"):
            exact(topology, workload, Options(window=window))
        return
    schedule = exact(topology, workload, Options(window=window))
    require_valid(schedule, topology)
    assert schedule.lower_bound_seconds <= min(steps) * (1 + 1e-9)
    assert schedule.step_seconds >= min(steps) * (1 - 1e-9)


@pytest.mark.slow
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_the_plan_is_near_the_best_of_all(seed: int) -> None:
    topology = random_topology(seed, 3, memory=1e6)
    workload = chain_workload([float(1 + (seed + at) % 7) for at in range(7)], [0] * 6, microbatches=4)
    steps = [simulated(workload, topology, plan) for plan in all_plans(workload, topology, 4)]
    schedule = exact(topology, workload, Options())
    assert schedule.lower_bound_seconds <= min(steps) * (1 + 1e-9)
    assert schedule.step_seconds <= min(steps) * 1.1


@pytest.mark.slow
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 4))
def test_never_worse_than_op_fence_and_equal_inputs_give_equal_plans(seed: int, count: int) -> None:
    workload, topology = random_workload(seed, 10), random_topology(seed, count, memory=2000.0)
    try:
        other = opfence_plus(topology, workload, Options())
    except PlanError:
        assume(False)
    schedule = exact(topology, workload, Options())
    require_valid(schedule, topology)
    assert schedule.step_seconds <= other.step_seconds
    again = exact(topology, workload, Options())
    assert (again.assignment, again.lower_bound_seconds) == (
        schedule.assignment,
        schedule.lower_bound_seconds,
    )


@pytest.mark.parametrize("count", [1, 2, 3])
def test_as_many_workers_as_asked_for(count: int) -> None:
    workload, topology = random_workload(4, 12), random_topology(4, 4, memory=5000.0)
    schedule = exact(topology, workload, Options(workers=count))
    assert len(schedule.plan.workers()) == count
    steps = [
        simulated(workload, topology, plan)
        for plan in all_plans(workload, topology, workload.microbatches)
        if len(plan.workers) == count
    ]
    assert schedule.lower_bound_seconds <= min(steps) * (1 + 1e-9)


def test_nothing_is_proven_about_loops() -> None:
    workload = dataclasses.replace(chain_workload([1.0] * 8, [1] * 7), ties=((0, 7),))
    schedule = exact(random_topology(1, 3, memory=1e6), workload, Options())
    assert schedule.lower_bound_seconds == 0 and schedule.gap is None


def test_large_cases_are_refused() -> None:
    with pytest.raises(PlanError, match="up to 10 workers and 256 places to cut, found 11 and 13: use"):
        exact(random_topology(1, 11, memory=1e6), chain_workload([1.0] * 12, [1] * 11), Options())
    with pytest.raises(PlanError, match="found 2 and 301"):
        exact(random_topology(1, 2, memory=1e6), chain_workload([1.0] * 300, [1] * 299), Options())


def test_a_model_too_large() -> None:
    with pytest.raises(PlanError, match=r"\d GB are missing"):
        exact(random_topology(5, 3, memory=20.0), random_workload(5, 10), Options())


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 12))
def test_what_is_certain_goes_to_the_next_segment_in_every_plan(seed: int, nodes: int) -> None:
    workload = random_workload(seed, nodes)
    certain = certain_crossing(workload)
    forward, backward = certain.forward, certain.backward
    assert (forward <= workload.crossing_forward).all() and (backward <= workload.crossing_backward).all()
    draw = np.random.default_rng(seed)
    legal = np.flatnonzero(workload.legal)[1:-1]
    cuts = tuple(sorted(draw.choice(legal, draw.integers(0, len(legal) + 1), replace=False).tolist()))
    ranges = list(itertools.pairwise([0, *cuts, nodes]))
    assume(all(workload.parameters[a:b].sum() for a, b in ranges))
    plan = plan_of(workload, Assignment(cuts, (("a",),) * len(ranges), 1, 1))
    for number, at in enumerate(cuts):
        there = [e for e in plan.edges if (e.source, e.target) == (number, number + 1)]
        assert any(e.differentiable for e in there) >= certain.has_gradient[at]
        assert sum(e.bytes for e in there) >= forward[at]
        assert sum(e.bytes for e in there if e.differentiable) >= backward[at]

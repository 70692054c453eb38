from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from benchmarks.simulated_plans import on_cores
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.planner.workloads import UNIT, chain_workload, random_topology, random_workload
from tests.support.examples import examples

from farflung.errors import PlanError
from farflung.planner.assignment import Assignment, Options, Schedule, memory_of, plan_of
from farflung.planner.codecs.policies import adatopk, compressed
from farflung.planner.schedulers.auto import auto
from farflung.planner.schedulers.auto.polish import Budget, Judge, RatedPlan, widened
from farflung.planner.schedulers.auto.scheduler import TINY_WORKERS
from farflung.planner.schedulers.baselines import equal_compute, equal_count
from farflung.planner.schedulers.evolutionary import evolutionary
from farflung.planner.schedulers.exact import exact
from farflung.planner.schedulers.opfence import opfence, opfence_plus
from farflung.plans import Topology, WorkerSpec
from farflung.simulator import Conditions, simulate
from farflung.workload import Workload

pytestmark = pytest.mark.slow

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


@settings(max_examples=examples(10))
@given(seed=st.integers(0, 10**6))
def test_plans_are_valid_and_what_the_simulator_says(seed: int) -> None:
    topology, workload = case(seed)
    schedule = planned(topology, workload)
    if schedule is not None:
        require_valid(schedule, topology)
        assert simulate(schedule.plan, topology).step_seconds == pytest.approx(schedule.step_seconds)


@settings(max_examples=examples(5))
@given(seed=st.integers(0, 10**6))
def test_equal_inputs_seed_and_budget_give_an_equal_plan(seed: int) -> None:
    topology, workload = case(seed)
    first, second = planned(topology, workload), planned(topology, workload)
    assert (first and first.assignment) == (second and second.assignment)


@settings(max_examples=examples(6))
@given(
    seed=st.integers(0, 10**6),
    faster=st.sampled_from(["device", "link"]),
    cores=st.none() | st.integers(1, 3),
)
def test_with_its_old_plan_an_improvement_never_makes_it_worse(
    seed: int, faster: str, cores: int | None
) -> None:
    topology, workload = case(seed)
    topology = topology if cores is None else on_cores(topology, cores)
    before = planned(topology, workload)
    if before is None:
        return
    better = improved(topology, seed, faster)
    old = simulate(before.plan, better).step_seconds
    after = auto(better, workload, replace(FEW, incumbent=before.assignment))
    assert after.step_seconds <= old * (1 + 1e-9)


def improved(topology: Topology, seed: int, what: str) -> Topology:
    """One device or one link twice as fast."""
    draw = random.Random(seed)
    workers, links = list(topology.workers), [list(row) for row in topology.bandwidth_mbps]
    if what == "device" or len(workers) == 1:
        number = draw.randrange(len(workers))
        workers[number] = msgspec.structs.replace(workers[number], tflops=workers[number].tflops * 2)
    else:
        a, b = draw.sample(range(len(workers)), 2)
        links[a][b] *= 2
    rows = tuple(tuple(row) for row in links)
    return msgspec.structs.replace(topology, workers=tuple(workers), bandwidth_mbps=rows)


@settings(max_examples=examples(5))
@given(seed=st.integers(0, 10**6))
@example(5167)  # two workers whose best cut no greedy one is near
def test_no_rival_is_better(seed: int) -> None:
    topology, workload = case(seed)
    schedule = planned(topology, workload)
    few = len(topology.workers) <= TINY_WORKERS  # and positions are few in all of these cases
    for rival in (equal_count, equal_compute, evolutionary, opfence, opfence_plus, *([exact] if few else [])):
        try:
            theirs = rival(topology, workload, FEW)
        except PlanError:
            continue
        assert schedule is not None
        assert schedule.step_seconds <= theirs.step_seconds
        assert schedule.lower_bound_seconds <= schedule.step_seconds


def test_a_number_of_workers_and_a_window_are_kept() -> None:
    topology, workload = random_topology(5, 6, memory=1e6), random_workload(5, 12)
    schedule = auto(topology, workload, replace(FEW, workers=3, window=2))
    assert len(schedule.plan.workers()) == 3
    assert schedule.plan.window == 2


def test_alternatives_are_chosen_from() -> None:
    topology = random_topology(2, 4, memory=1e6)
    few, many = (replace(random_workload(2, 10), microbatches=count) for count in (1, 2))
    schedule = auto(topology, many, replace(FEW, alternatives=(few,)))
    assert schedule.workload is few  # half the work


def test_a_cap_on_seconds_is_reported() -> None:
    topology, workload = random_topology(4, 6, memory=1e6), random_workload(4, 12)
    assert auto(topology, workload, Options(seconds=0.0)).capped
    assert not auto(topology, workload, FEW).capped


def test_where_time_is_over_a_plan_has_as_many_microbatches_in_flight_as_its_lines_need() -> None:
    workload = chain_workload([1e9, 1e9], [UNIT], microbatches=16)
    workers = tuple(WorkerSpec(id, id, 1.0, 1.0) for id in "ab")
    topology = Topology(workers, ((0.0, 200.0), (200.0, 0.0)), ((0.0, 100.0), (100.0, 0.0)))
    judge = Judge(topology, Conditions(), Budget(0))
    narrow = Assignment((1,), (("a",), ("b",)), 16, window=2)
    rated = RatedPlan(judge.simulate_plan(workload, narrow), workload, narrow)
    found = widened(rated, judge)
    assert found.assignment == replace(narrow, window=16)
    assert found.seconds == judge.simulate_plan(workload, found.assignment) < rated.seconds / 3
    assert widened(found, judge) is found
    small = tuple(msgspec.structs.replace(one, memory_gb=1e-9) for one in workers)
    tight = Judge(msgspec.structs.replace(topology, workers=small), Conditions(), Budget(0))
    assert widened(rated, tight) is rated


@settings(max_examples=examples(6))
@given(seed=st.integers(0, 10**6))
@example(seed=702)  # where a rival that may copy the model finds no plan, and without copies a good start
def test_plans_with_replicas_are_valid_and_never_worse(seed: int) -> None:
    topology, workload = case(seed)
    one, several = planned(topology, workload), planned(topology, workload, replace(FEW, most_replicas=3))
    if one is None or several is None:
        assert one is several
        return
    require_valid(several, topology)
    assert several.step_seconds <= one.step_seconds
    assert several.lower_bound_seconds <= several.step_seconds


def test_devices_with_fast_links_between_them_share_the_microbatches() -> None:
    """Four equal devices, a model that fits each, values too large to send: four copies of one segment."""
    workload = replace(chain_workload([5.0, 5.0, 5.0], [10**9] * 2), microbatches=8)
    topology = fast_links(4)
    schedule = auto(topology, workload, Options(most_replicas=4))
    assert schedule.assignment.shares == (2, 2, 2, 2)


def fast_links(count: int) -> Topology:
    """Equal workers, a hundred Mbit/s between any two."""
    rows, near = (tuple((each,) * count for _ in range(count)) for each in (100.0, 0.1))
    workers = tuple(WorkerSpec(f"w{n}", "here", 1e-12, 100.0) for n in range(count))
    return Topology(workers=workers, latency_ms=near, bandwidth_mbps=rows)


@settings(max_examples=examples(15))
@given(seed=st.integers(0, 10**6), window=st.sampled_from([None, 1]), workers=st.sampled_from([None, 1, 2]))
def test_what_is_asked_for_is_kept(seed: int, window: int | None, workers: int | None) -> None:
    topology, workload = case(seed)
    options = Options(budget=30, window=window, workers=workers, most_replicas=2)
    schedule = planned(topology, workload, options)
    if schedule is not None:
        assert window in (None, schedule.assignment.window)
        assert workers in (None, len(schedule.plan.workers()))


@settings(max_examples=examples(15))
@given(seed=st.integers(0, 10**6))
def test_no_worker_alone_is_faster(seed: int) -> None:
    topology, workload = random_topology(seed, 5, memory=1e6), random_workload(seed, 6)
    schedule = planned(topology, workload)
    assert schedule is not None
    for name in topology.ids:
        alone = Assignment((), ((name,),), workload.microbatches, workload.microbatches)
        step = simulate(plan_of(workload, alone), topology).step_seconds
        assert schedule.step_seconds <= step * (1 + 1e-9)


@settings(max_examples=examples(10))
@given(seed=st.integers(0, 10**6), ratio=st.sampled_from([None, 30.0, 300.0]))
def test_more_budget_never_makes_it_worse(seed: int, ratio: float | None) -> None:
    """With codecs, too: a larger budget once chose a plan whose coded step took three times as long."""
    topology, workload = case(seed)
    seconds = []
    for budget in (25, 100, 400):
        options = replace(FEW, budget=budget)
        try:
            if ratio is None:
                found = auto(topology, workload, options)
            else:
                policy, speedups = adatopk(ratio), (1.0, ratio)
                found = compressed(auto, policy, topology, workload, options, Conditions(), speedups)
        except PlanError:
            return
        seconds.append(found.step_seconds)
    assert seconds == sorted(seconds, reverse=True)


def test_nothing_is_searched_where_a_known_plan_is_proven_best() -> None:
    """A model so small that any message takes longer than all of it on one worker."""
    rates = tuple(tuple(20.0 * (a != b) for b in range(4)) for a in range(4))
    topology = Topology(tuple(WorkerSpec(f"w{n}", f"home-{n}", 0.05, 8.0) for n in range(4)), rates, rates)
    workload = chain_workload([1e6] * 8, [10**6] * 7)
    found = auto(topology, workload, Options(budget=400))
    assert found.step_seconds <= 1.001 * found.lower_bound_seconds
    assert len(found.assignment.workers) == 1 and found.evaluated < 40


def test_workers_who_share_cores_share_the_work_evenly_where_that_sends_no_more() -> None:
    """All of it takes the two cores as long, however it is divided."""
    count, workload = 4, chain_workload([2e9] * 16, [10**4] * 15)
    rates = tuple(tuple(400.0 * (a != b) for b in range(count)) for a in range(count))
    near = tuple(tuple(1.0 * (a != b) for b in range(count)) for a in range(count))
    apart = Topology(tuple(WorkerSpec(f"w{n}", "lab", 0.05, 8.0) for n in range(count)), near, rates)
    found = auto(on_cores(apart, 2), workload, Options(budget=400, workers=count))
    assert found.assignment.cuts == (4, 8, 12)


@pytest.mark.full
def test_workers_who_share_cores_are_not_sent_bytes_for_little() -> None:
    """Four workers on two cores: even segments are little faster and send much more."""
    little = (3, 8, 13)
    sizes = [10**3 if node in little else 10**5 for node in range(1, 16)]
    count, workload = 4, chain_workload([2e9] * 16, sizes)
    rates = tuple(tuple(400.0 * (a != b) for b in range(count)) for a in range(count))
    near = tuple(tuple(1.0 * (a != b) for b in range(count)) for a in range(count))
    apart = Topology(tuple(WorkerSpec(f"w{n}", "lab", 0.05, 8.0) for n in range(count)), near, rates)
    shared = on_cores(apart, 2)
    options = Options(budget=400, workers=count)
    alone, together = auto(apart, workload, options), auto(shared, workload, options)
    assert together.step_seconds <= 1.05 * simulate(alone.plan, shared).step_seconds
    assert (alone.assignment.cuts, together.assignment.cuts) == ((4, 8, 12), little)
    assert simulate(together.plan, shared).step_seconds > simulate(together.plan, apart).step_seconds
    even = simulate(alone.plan, shared).step_seconds
    assert even < together.step_seconds
    kept = auto(shared, workload, replace(options, incumbent=alone.assignment))
    assert kept.step_seconds <= even

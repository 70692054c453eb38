from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.workloads import (
    UNIT,
    branching_workload,
    chain_workload,
    random_topology,
    random_workload,
)

from farflung.errors import PlanError
from farflung.planner.assignment import Assignment, Options, memory_of, plan_of
from farflung.planner.bounds import lower_bound_seconds
from farflung.planner.bounds.gates import blocks_of
from farflung.planner.objective.closed_form import step_seconds
from farflung.planner.schedulers.baselines import equal_compute
from farflung.planner.schedulers.exact import exact
from farflung.planner.schedulers.opfence import opfence, opfence_plus
from farflung.plans import Topology, WorkerSpec
from farflung.simulator import Conditions, simulate
from farflung.workload import Span, Workload

CLOSE = 1 + 1e-9


def case(seed: int) -> tuple[Topology, Workload]:
    workload = random_workload(seed, 4 + seed % 9, ties=seed % 4 == 0)
    return random_topology(seed, 1 + seed % 6), workload


def any_assignment(workload: Workload, topology: Topology, draw: random.Random) -> Assignment | None:
    """Any cuts, any workers once each or the first one last too, if memory allows it and ties are kept."""
    legal = [at for at in range(1, len(workload)) if workload.legal[at]]
    cuts = sorted(draw.sample(legal, draw.randint(0, min(len(legal), len(topology.workers)))))
    cuts = [at for at in cuts if 0 < workload.owned[at] < workload.owned[-1]]
    cuts = [
        at
        for at, before in zip(cuts, [0, *cuts], strict=False)
        if workload.owned[at] > workload.owned[before]
    ]
    loops = bool(workload.ties) and len(cuts) > 1 and draw.random() < 0.7
    if len(cuts) + 1 - loops > len(topology.workers):
        return None
    order = draw.sample(topology.ids, len(cuts) + 1 - loops)
    workers = tuple((worker,) for worker in (order + order[:1] if loops else order))
    window = draw.randint(1, workload.microbatches)
    found = Assignment(tuple(cuts), workers, workload.microbatches, window)
    ranges = found.ranges(len(workload))
    for uses in workload.ties:
        holders = {w for (a, b), w in zip(ranges, workers, strict=True) if any(a <= at < b for at in uses)}
        if len(holders) > 1:
            return None
    fits = all(memory_of(workload, found, w.id) <= w.memory_gb * 1e9 for w in topology.workers)
    return found if fits else None


@pytest.mark.slow
@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), split=st.booleans())
def test_no_plan_is_faster_than_the_bound(seed: int, split: bool) -> None:
    topology, workload = case(seed)
    bound = lower_bound_seconds(topology, workload, split_backward=split)
    draw = random.Random(seed)
    for _ in range(12):
        assignment = any_assignment(workload, topology, draw)
        if assignment is not None:
            conditions = Conditions(split_backward=split)
            seconds = simulate(plan_of(workload, assignment), topology, conditions).step_seconds
            assert bound <= seconds * CLOSE, assignment


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), split=st.booleans())
def test_branches_that_run_beside_each_other_are_no_longer_than_the_longest(seed: int, split: bool) -> None:
    draw = random.Random(seed)
    workload = branching_workload(seed, draw.randint(2, 7))
    if draw.random() < 0.7:  # where nothing hides a round trip
        workload = replace(workload, microbatches=1)
    topology = random_topology(seed, draw.randint(2, 3), memory=1e5)
    conditions = Conditions(split_backward=split)
    bounds = [
        lower_bound_seconds(topology, workload, replicas=replicas, split_backward=split)
        for replicas in (1, 2)
    ]
    for _ in range(60):
        assignment = any_assignment(workload, topology, draw)
        if assignment is None:
            continue
        plan = plan_of(workload, assignment)
        if step_seconds(plan, topology, conditions) < max(bounds):
            assert simulate(plan, topology, conditions).step_seconds * CLOSE >= max(bounds), assignment


@pytest.mark.parametrize("replicas", [1, 2])
def test_two_branches_on_two_workers_take_as_long_as_one(replicas: int) -> None:
    spans = (Span(0, 0, (2,), 1, True), Span(1, 1, (2,), 1, True))
    workload = replace(chain_workload([9, 9, 1], [1, 1], microbatches=1), spans=spans)
    workers = tuple(WorkerSpec(f"w{n}", "", tflops=1e-12, memory_gb=1) for n in range(2))
    topology = Topology(workers, ((0, 0), (0, 0)), ((0, 1), (1, 0)))
    assignment = Assignment((1, 2), (("w0",), ("w1",), ("w1",)), 1, 1)
    seconds = simulate(plan_of(workload, assignment), topology).step_seconds
    assert seconds == pytest.approx(30, rel=1e-3)
    assert lower_bound_seconds(topology, workload, replicas=replicas) <= seconds


def test_a_model_without_work_is_bound_by_nothing() -> None:
    assert lower_bound_seconds(random_topology(1, 2), chain_workload([0, 0, 0], [1, 1])) == 0


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_no_scheduler_is_faster_than_the_bound(seed: int) -> None:
    topology, workload = case(seed)
    bound = lower_bound_seconds(topology, workload)
    for scheduler in (exact, opfence, opfence_plus, equal_compute):
        try:
            schedule = scheduler(topology, workload, Options())
        except PlanError:
            continue
        assert bound <= schedule.step_seconds * CLOSE


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_a_row_of_operators_is_all_gates(seed: int) -> None:
    draw = random.Random(seed)
    flops = [float(draw.randint(1, 20)) for _ in range(draw.randint(1, 12))]
    crossing = [draw.randint(1, 10**6) for _ in flops[1:]]
    blocks = blocks_of(chain_workload(flops, crossing))
    assert [block.work for block in blocks] == [pytest.approx(3 * each) for each in flops]
    assert [block.forward_bytes for block in blocks] == [0, *crossing]


def test_what_is_made_beside_the_way_to_work_does_not_make_a_hop_cheap() -> None:
    """As the positions of a vision transformer: a few bytes that meet the patches before the first block."""
    spans = (
        Span(0, 0, (2,), 10**6, True),
        Span(1, 1, (2,), 10, True),
        Span(2, 2, (3,), 10**6 + 10, True),
        Span(3, 3, (4,), 7, True),  # statistics, of which no work comes
    )
    workload = replace(chain_workload([5, 0, 0, 5, 0], [1] * 4), spans=spans)
    assert [(block.forward_bytes, block.backward_bytes) for block in blocks_of(workload)] == [
        (0, 0),
        (10**6, 10**6),
    ]


def test_all_of_a_small_fleet_is_enumerated() -> None:
    """Every order of every subset of four workers, every cut: the least step is at the bound or near it."""
    workload = chain_workload([4, 3, 5, 2, 4], [10**4] * 4, microbatches=8)
    topology = random_topology(3, 4, memory=1e9)
    bound = lower_bound_seconds(topology, workload)
    best = float("inf")
    for count in range(1, 5):
        for workers in itertools.permutations(topology.ids, count):
            for cuts in itertools.combinations(range(1, 5), count - 1):
                assignment = Assignment(cuts, tuple((w,) for w in workers), 8, 8)
                best = min(best, simulate(plan_of(workload, assignment), topology).step_seconds)
    assert bound <= best * CLOSE
    assert best <= 1.5 * bound


@pytest.mark.parametrize("mbps", [0.01, 1.0])
def test_a_large_value_is_sent_however_little_the_operators_inside_its_block_send(mbps: float) -> None:
    """Four blocks of three operators: between these little crosses, but what goes past them is large."""
    small = tuple(Span(at, at, (at + 1,), 1, True) for at in range(12))
    large = tuple(Span(100 + at, at, (at + 3,), UNIT, True) for at in range(0, 12, 3))
    workload = replace(chain_workload([1.0] * 13, [1] * 12), spans=(*small, *large))
    workers = tuple(WorkerSpec(f"w{n}", "", tflops=3e-12, memory_gb=1) for n in range(3))
    rates, near = (tuple((each,) * 3 for _ in range(3)) for each in (mbps, 0.0))
    bound = lower_bound_seconds(Topology(workers, near, rates), workload)
    alone = 8 * 13.0  # seconds: microbatches times operators
    assert bound < 0.7 * alone if mbps > 0.5 else bound == pytest.approx(alone, rel=1e-3)

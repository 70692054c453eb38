from __future__ import annotations

import random
from dataclasses import replace

import msgspec
from benchmarks.simulated_plans import MB, chain, random_chain, topology
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.workloads import chain_workload, random_topology

from farflung.planner.assignment import Assignment, Options
from farflung.planner.objective.window import SLACK, choose_window, with_window
from farflung.simulator import Conditions, simulate


def test_a_single_device_needs_one_microbatch_at_a_time() -> None:
    assert choose_window(chain([0.1], [], 16), topology([1.0])) == 1


def test_until_the_first_comes_back_the_bottleneck_goes_on() -> None:
    """Forward passes of 0.1 s for the two seconds in which nothing is back."""
    plan, places = chain([0.1, 0.0], [MB], 32), topology([1.0, 1.0], 1000.0, [[0.0, 500.0], [1500.0, 0.0]])
    window = choose_window(plan, places)
    assert 19 <= window <= 23
    assert simulate(plan, places, Conditions(window=window)).bottleneck.share > 0.98


def test_memory_may_allow_fewer() -> None:
    plan, places = chain([0.1, 0.1], [MB], 32), topology([1.0, 1.0], 1000.0, 500.0)
    assert choose_window(plan, places, most=3) == 3


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_a_narrow_window_costs_hardly_anything(seed: int) -> None:
    plan, places = random_chain(random.Random(seed), shares_lines=True)
    window = choose_window(plan, places)
    widest = replace(Conditions(), window=plan.microbatches)
    chosen = replace(Conditions(), window=window)
    most = simulate(plan, places, widest).step_seconds * (1 + SLACK)
    assert simulate(plan, places, chosen).step_seconds <= most


def test_an_assignment_gets_no_more_than_its_workers_can_hold() -> None:
    workload = chain_workload([100.0, 100.0], [10], microbatches=16)
    ample = random_topology(1, 2, memory=1e6)
    ample = msgspec.structs.replace(ample, latency_ms=((0.0, 60_000.0), (60_000.0, 0.0)))
    assignment = Assignment((1,), (("w0",), ("w1",)), 16, 1)
    free = with_window(workload, assignment, ample, Options()).window
    assert free > 3
    small = msgspec.structs.replace(ample.workers[1], memory_gb=(workload.memory_bytes(1, 2, 3) + 0.5) / 1e9)
    tight = msgspec.structs.replace(ample, workers=(ample.workers[0], small))
    assert with_window(workload, assignment, tight, Options()).window == 3
    assert with_window(workload, assignment, ample, Options(window=1)) == assignment

"""The closed form against the simulator: never above it, seldom far below, never worse for a faster part."""

from __future__ import annotations

import random

import msgspec
import pytest
from benchmarks.simulated_plans import MB, chain, on_cores, random_chain, random_replicas, topology
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.planner.objective.closed_form import step_seconds
from farflung.planner.objective.window import choose_window
from farflung.plans import FEEDER, Edge, Plan, Topology
from farflung.simulator import Conditions, simulate

drawn = settings(max_examples=60)


def require_a_lower_bound(plan: Plan, places: Topology, conditions: Conditions) -> None:
    found = simulate(plan, places, conditions)
    assert step_seconds(plan, places, conditions) <= found.step_seconds * (1 + 1e-9)
    assert all(load.share <= 1 + 1e-9 for load in found.loads)


@drawn
@given(
    seed=st.integers(0, 10**6),
    shares_lines=st.booleans(),
    splits=st.booleans(),
    cores=st.none() | st.integers(1, 4),
)
def test_no_chain_takes_less(seed: int, shares_lines: bool, splits: bool, cores: int | None) -> None:
    plan, places = random_chain(random.Random(seed), shares_lines)
    if cores is not None:
        places = on_cores(places, cores)
    require_a_lower_bound(plan, places, Conditions(split_backward=splits, update_bytes_per_second=1e6))


@drawn
@given(seed=st.integers(0, 10**6))
def test_no_chain_that_is_fed_at_several_places_takes_less(seed: int) -> None:
    """Such steps often take turns: the feeder is late for every other one."""
    draw = random.Random(seed)
    plan, places = random_chain(draw, shares_lines=True)
    targets = draw.sample(range(len(plan.placements)), draw.randint(1, min(3, len(plan.placements))))
    fed = [Edge(100 + target, FEEDER, target, draw.randint(1, 5) * MB, False) for target in targets]
    require_a_lower_bound(msgspec.structs.replace(plan, edges=[*plan.edges, *fed]), places, Conditions())


@drawn
@given(seed=st.integers(0, 10**6))
def test_no_plan_with_replicas_takes_less(seed: int) -> None:
    plan, places = random_replicas(random.Random(seed))
    require_a_lower_bound(plan, places, Conditions())


@pytest.mark.slow
def test_where_nothing_is_shared_they_agree() -> None:
    """With the windows that planners choose; loops share a device, and are not among these."""
    draws = [random_chain(random.Random(seed)) for seed in range(400)]
    chains = [(p, t) for p, t in draws if p.workers() == [q.worker for q in p.placements]]
    ratios = []
    for plan, places in chains:
        conditions = Conditions(window=choose_window(plan, places))
        ratios.append(
            simulate(plan, places, conditions).step_seconds / step_seconds(plan, places, conditions)
        )
    assert len(chains) > 250
    assert sum(ratio <= 1.05 for ratio in ratios) >= 0.98 * len(ratios)
    assert max(ratios) <= 1.15


@drawn
@given(seed=st.integers(0, 10**6), has_replicas=st.booleans())
def test_nothing_rises_when_something_gets_faster(seed: int, has_replicas: bool) -> None:
    draw = random.Random(seed)
    plan, places = random_replicas(draw) if has_replicas else random_chain(draw, shares_lines=True)
    before = step_seconds(plan, places)
    for _ in range(4):
        assert step_seconds(plan, faster(places, draw)) <= before * (1 + 1e-12)


def faster(places: Topology, draw: random.Random) -> Topology:
    """With one device, line or link faster."""
    at, factor = draw.randrange(len(places.workers)), draw.uniform(1, 4)
    worker = places.workers[at]
    kind = draw.choice(["device", "up", "down", "link"])
    if kind == "link":
        rows = [list(row) for row in places.bandwidth_mbps]
        rows[at] = [rate * factor for rate in rows[at]]
        return msgspec.structs.replace(places, bandwidth_mbps=tuple(map(tuple, rows)))
    name = {"device": "tflops", "up": "up_mbps", "down": "down_mbps"}[kind]
    rate = getattr(worker, name)
    changed = msgspec.structs.replace(worker, **{name: rate and rate * factor})
    return msgspec.structs.replace(places, workers=(*places.workers[:at], changed, *places.workers[at + 1 :]))


def test_a_device_that_waits_for_the_first_gradient() -> None:
    """Through with its forward passes before anything is back, it cannot begin the backward ones earlier."""
    plan, places = chain([0.5, 0.0], [MB], 2), topology([1.0, 1.0], 8000.0, 2000.0)
    there_and_back = 0.5 + 2 * 2.001
    expected = there_and_back + 2 * 1.0
    assert step_seconds(plan, places, Conditions(commit=False)) == pytest.approx(expected)

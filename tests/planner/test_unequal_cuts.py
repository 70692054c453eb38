"""Pipelines with cuts of their own: what they add up, and when a planner proposes them."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.planner.workloads import UNIT, chain_workload, random_topology, random_workload

from farflung.errors import PlanError
from farflung.planner.assignment import Assignment, Options, Schedule, memory_by_worker, plan_of
from farflung.planner.codecs.wishes import scheduler_for
from farflung.planner.grouping import MOST_GROUPS, groupings
from farflung.planner.objective.closed_form import step_seconds as closed_form
from farflung.planner.registry import scheduler
from farflung.planner.replicas import scheduler_for_replicas, with_replicas
from farflung.planner.run import predict
from farflung.planner.unequal_cuts import ended_together
from farflung.plans import CodecWishes, Plan, Topology, WorkerSpec, folded, single_pipelines
from farflung.simulator import Conditions, simulate
from farflung.simulator.costs import pieces_of
from farflung.workload import Workload

SEEDS = st.integers(0, 10**6)


def beside_each_other(seed: int, workload: Workload, pipelines: int) -> Assignment:
    """Pipelines with any legal cuts, on workers w0, w1, ... in their order."""
    draw = random.Random(seed)
    legal = [at for at in range(1, len(workload)) if workload.legal[at]]
    parts, names = [], 0
    for _ in range(pipelines):
        cuts = tuple(sorted(draw.sample(legal, draw.randint(0, min(2, len(legal))))))
        workers = tuple((f"w{names + at}",) for at in range(len(cuts) + 1))
        names += len(workers)
        parts.append(Assignment(cuts, workers, draw.randint(1, 4), draw.randint(1, 4)))
    shares = tuple(one.microbatches for one in parts)
    return replace(parts[0], microbatches=sum(shares), shares=shares, others=tuple(parts[1:]))


@given(SEEDS, st.integers(2, 4))
def test_each_gradient_is_in_one_piece_and_each_pipeline_has_all_of_them(seed: int, count: int) -> None:
    workload = random_workload(seed, 9)
    assignment = beside_each_other(seed, workload, count)
    plan = plan_of(workload, assignment)
    pieces = pieces_of(plan)
    assert sum(piece.gradient_bytes for piece in pieces) == workload.trainable_bytes.sum()
    assert len({piece.holders for piece in pieces}) == len(pieces)
    for at, part in enumerate(single_pipelines(plan)):
        for placed in part.placements:
            mine = [piece.gradient_bytes for piece in pieces if piece.holders[at] == placed.segment]
            assert sum(mine) == placed.gradient_bytes
    edges = [0, *sorted({cut for part in assignment.parts() for cut in part.cuts}), len(workload)]
    assert {one.value for one in plan.sums} <= {*edges}  # cut nowhere but where a pipeline is


@settings(max_examples=40)
@given(SEEDS, st.integers(2, 3))
def test_the_closed_form_is_below_the_simulated_step(seed: int, count: int) -> None:
    workload = random_workload(seed, 8)
    plan = plan_of(workload, beside_each_other(seed, workload, count))
    topology = random_topology(seed, len(plan.workers()))
    assert closed_form(plan, topology) <= simulate(plan, topology).step_seconds * (1 + 1e-9)


@settings(max_examples=40)
@given(SEEDS, st.integers(2, 3))
def test_equal_cuts_take_the_same_time_folded_or_not(seed: int, count: int) -> None:
    """Of a workload whose nodes all have a gradient: folded plans wait for segments without one, too."""
    workload = random_workload(seed, 8)
    workload = replace(workload, trainable_bytes=workload.trainable_bytes + UNIT)
    one = beside_each_other(seed, workload, 1)
    depth = len(one.workers)
    copies = [tuple((f"w{number * depth + at}",) for at in range(depth)) for number in range(count)]
    rest = tuple(replace(one, workers=workers, microbatches=2, shares=()) for workers in copies[1:])
    shares = (one.microbatches, *(2 for _ in rest))
    apart = replace(one, microbatches=sum(shares), shares=shares, others=rest)
    rows = tuple(tuple(name for names in row for name in names) for row in zip(*copies, strict=True))
    together = replace(apart, workers=rows, others=())
    topology = random_topology(seed, count * depth)
    seconds = [simulate(plan_of(workload, each), topology).step_seconds for each in (apart, together)]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-9)
    assert folded(plan_of(workload, apart)) == plan_of(workload, together)
    memory = [memory_by_worker(workload, each) for each in (apart, together)]
    assert memory[0] == memory[1]


@given(SEEDS, st.integers(1, 12), st.integers(0, 4))
def test_no_worker_is_in_two_groups(seed: int, workers: int, count: int) -> None:
    for groups in groupings(random_topology(seed, workers), count if count > 1 else 0):
        members = [number for group in groups for number in group]
        assert len({*members}) == len(members) and {*members} <= {*range(workers)}
        assert all(groups) and 2 <= len(groups) <= MOST_GROUPS
        assert count < 2 or len(groups) == count


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 5)), min_size=1, max_size=5), st.integers(0, 30))
def test_no_microbatch_elsewhere_would_end_sooner(rates: list[tuple[float, float]], more: int) -> None:
    shares = ended_together(len(rates) + more, rates)
    assert sum(shares) == len(rates) + more and min(shares) >= 1
    ends = [fill + share * each for share, (fill, each) in zip(shares, rates, strict=True)]
    last = ends.index(max(ends))
    if shares[last] > 1:
        assert all(end + each >= ends[last] - 1e-9 for end, (_, each) in zip(ends, rates, strict=True))


def two_sites(line_mbps: float, memory_gb: float = 8.0) -> Topology:
    """A fast device at one site, and three at another that are a third as fast, far from each other."""
    sites = ["north", "south", "south", "south"]
    specs = tuple(
        WorkerSpec(f"w{at}", site, 1e-12 * (30 if at == 0 else 10), 8.0 if at == 0 else memory_gb)
        for at, site in enumerate(sites)
    )
    rates = tuple(tuple(1000.0 if a == b else line_mbps for b in sites) for a in sites)
    return Topology(specs, tuple(tuple(0.0 if a == b else 20.0 for b in sites) for a in sites), rates)


def heavy_chain() -> Workload:
    """Six layers with large activations and small parameters, sixteen microbatches."""
    chain = chain_workload([10.0] * 6, [10 * UNIT] * 5, microbatches=16)
    weights = np.full(6, float(UNIT))
    return replace(chain, parameter_bytes=weights, trainable_bytes=weights, kept_bytes=2 * weights)


def planned(replicas: int, topology: Topology, workload: Workload, **options: object) -> Schedule:
    most = replicas or len(topology.workers)
    search = scheduler_for_replicas("auto", replicas)
    return search(topology, workload, replace(Options(budget=100, most_replicas=most), **options))


@pytest.mark.cases(1)
@pytest.mark.parametrize("replicas", [0, 2])
def test_each_site_gets_a_cut_of_its_own_where_a_slow_line_lies_between_unlike_devices(replicas: int) -> None:
    topology, workload = two_sites(2.0), heavy_chain()
    found = planned(replicas, topology, workload)
    assert [one.segments for one in found.plan.pipelines] == [1, 3]
    first, second = (one.microbatches for one in found.plan.pipelines)
    assert first + second == 16 and first >= second
    equal = with_replicas(scheduler("auto"), 2)(topology, workload, Options(budget=100, most_replicas=2))
    alone = scheduler("auto")(topology, workload, Options(budget=100))
    assert found.step_seconds < 0.95 * min(equal.step_seconds, alone.step_seconds)
    assert found.step_seconds == pytest.approx(simulate(found.plan, topology).step_seconds)


def test_a_device_that_does_not_hold_the_model_gets_a_part_of_its_own_pipeline() -> None:
    chain, weights = chain_workload([10.0] * 6, [UNIT] * 5, microbatches=16), np.full(6, 50.0 * UNIT)
    workload = replace(chain, parameter_bytes=weights, trainable_bytes=weights, state_bytes=weights)
    whole = workload.memory_bytes(0, len(workload), 1) / 1e9
    topology = two_sites(500.0, memory_gb=0.8 * whole)
    found = planned(2, topology, workload)
    room = {worker.id: worker.memory_gb * 1e9 for worker in topology.workers}
    assert all(size <= room[id] for id, size in memory_by_worker(workload, found.assignment).items())
    assert found.plan.pipelines[0].segments == 1 and found.plan.pipelines[1].segments > 1


def test_each_pipeline_has_the_window_that_it_needs_and_has_memory_for() -> None:
    """One device needs two microbatches in flight, and has memory for no more; three need six."""
    workload, topology = replace(heavy_chain(), tape_bytes=np.full(6, 2.0 * UNIT)), two_sites(2.0)
    free = planned(2, topology, workload)
    needed = memory_by_worker(workload, free.assignment)
    assert [one.window or free.plan.window for one in free.plan.pipelines] == [2, 6]
    short = msgspec.structs.replace(topology.workers[0], memory_gb=1.01 * needed["w0"] / 1e9)
    found = planned(2, msgspec.structs.replace(topology, workers=(short, *topology.workers[1:])), workload)
    assert found.plan == free.plan and found.step_seconds == free.step_seconds
    wide = replace(free.assignment, window=6)
    assert memory_by_worker(workload, wide)["w0"] > 1.9 * needed["w0"]
    narrow = replace(free.assignment, others=tuple(replace(one, window=2) for one in free.assignment.others))
    assert simulate(plan_of(workload, wide), topology).step_seconds > 0.995 * free.step_seconds
    assert simulate(plan_of(workload, narrow), topology).step_seconds > 1.1 * free.step_seconds


def test_where_segments_are_clipped_by_themselves_all_replicas_have_equal_cuts() -> None:
    found = planned(2, two_sites(2.0), heavy_chain(), equal_cuts=True)
    assert found.plan.replicas == 2 and not found.plan.pipelines


def seconds_of(found: Schedule | None) -> float:
    return float("inf") if found is None else found.step_seconds


@pytest.mark.full
@settings(max_examples=6, deadline=None)
@given(SEEDS, st.sampled_from([0, 2, 3]))
def test_a_step_is_never_longer_than_with_equal_cuts_or_one_pipeline(seed: int, replicas: int) -> None:
    workload, topology = random_workload(seed, 8), random_topology(seed, 5, memory=2000.0)
    assume(workload.microbatches >= max(2, replicas))
    options = Options(budget=40, most_replicas=replicas or 5)
    own = scheduler("auto")
    before: list[Schedule] = []
    for search in [with_replicas(own, replicas)] if replicas else [own]:
        try:
            before.append(search(topology, workload, options))
        except PlanError:
            continue
    try:
        found = scheduler_for_replicas("auto", replicas)(topology, workload, options)
    except PlanError:
        assert not before
        return
    assert found.step_seconds <= min(map(seconds_of, before), default=float("inf"))
    room = {worker.id: worker.memory_gb * 1e9 for worker in topology.workers}
    assert all(size <= room[id] for id, size in memory_by_worker(workload, found.assignment).items())
    assert not replicas or found.plan.pipeline_count in (1, replicas)


def coded(sums: str, every: str) -> Plan:
    search = scheduler_for(
        CodecWishes(every=every, sums=sums), scheduler_for_replicas("auto", 2), Conditions()
    )
    return search(two_sites(0.5), heavy_chain(), Options(budget=60, most_replicas=2)).plan


def test_codecs_of_links_and_sums_are_planned_as_for_equal_cuts() -> None:
    plan = coded("int8", "int8")
    assert [one.segments for one in plan.pipelines] == [1, 3] and plan.sum_codec == "int8"
    assert {(one.source, one.target) for one in plan.codecs} >= {("w1", "w2"), ("w2", "w1")}
    assert (
        simulate(plan, two_sites(0.5)).step_seconds
        < simulate(coded("dense", "dense"), two_sites(0.5)).step_seconds
    )


def test_a_prediction_says_what_training_apart_gains() -> None:
    plan = coded("dense", "dense")
    found = predict(plan, two_sites(0.02), CodecWishes(), 100, Conditions())
    assert any("train apart" in note for note in found.notes)
    apart = msgspec.structs.replace(plan, inner_steps=20)
    assert simulate(apart, two_sites(0.02)).step_seconds < 0.7 * found.simulation.step_seconds

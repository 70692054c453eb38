"""`auto` with data that stays at home: what reads it is on home workers, and the rest may be anywhere."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.planner.plans import require_valid
from tests.planner.workloads import UNIT, chain_workload, random_topology, random_workload

from farflung.errors import PlanError
from farflung.planner.assignment import Assignment, Options, Schedule, memory_of
from farflung.planner.home import HomeRule
from farflung.planner.replicas import with_replicas
from farflung.planner.schedulers.auto import auto
from farflung.plans import Topology, WorkerSpec
from farflung.plans.wishes import KeepHome
from farflung.workload import Workload

BOTH = ("inputs", "targets")


def rule(nodes: int, bound: list[int], *home: str) -> HomeRule:
    """Home workers alone may run the nodes at these positions."""
    counts = np.zeros(nodes + 1, dtype=np.int64)
    for at in bound:
        counts[at + 1 :] += 1
    return HomeRule(KeepHome(BOTH, home), counts)


def fleet(*tflops: float, memory_gb: float = 1.0) -> Topology:
    """Workers w0, w1, ... with fast links, of so many operations a second."""
    rows = tuple((1e4,) * len(tflops) for _ in tflops)
    workers = tuple(WorkerSpec(f"w{at}", "", each * 1e-12, memory_gb) for at, each in enumerate(tflops))
    return Topology(workers, tuple((0.0,) * len(tflops) for _ in tflops), rows)


def chain() -> Workload:
    """Twelve equal nodes."""
    return chain_workload([10.0] * 12, [100] * 11)


def planned(topology: Topology, workload: Workload, home: HomeRule, **options: int) -> Schedule:
    schedule = auto(topology, workload, Options(budget=150, home=home, **options))  # type: ignore[arg-type]
    require_valid(schedule, topology)
    assert home.allows(schedule.assignment)
    return schedule


def test_one_home_worker_has_both_ends_and_faster_ones_the_middle() -> None:
    schedule = planned(fleet(1, 10, 10), chain(), rule(12, [0, 11], "w0"))
    workers = [names[0] for names in schedule.assignment.workers]
    assert workers[0] == workers[-1] == "w0" and {"w1", "w2"} == set(workers[1:-1])
    assert schedule.step_seconds < auto(fleet(1), chain(), Options()).step_seconds / 2


def test_two_home_workers_have_one_end_each() -> None:
    schedule = planned(fleet(4, 4, 10), chain(), rule(12, [0, 11], "w0", "w1"), workers=3)
    ends = schedule.assignment.workers[0] + schedule.assignment.workers[-1]
    assert set(ends) <= {"w0", "w1"}
    assert {names[0] for names in schedule.assignment.workers} == {"w0", "w1", "w2"}


@pytest.mark.parametrize(("bound", "end"), [([0, 1], 0), ([10, 11], -1)])
def test_one_bound_end_leaves_the_other_to_anybody(bound: list[int], end: int) -> None:
    schedule = planned(fleet(2, 10, 10), chain(), rule(12, bound, "w0"))
    workers = [names[0] for names in schedule.assignment.workers]
    assert workers[end] == "w0" and workers[-1 - end] in {"w1", "w2"}


def test_what_is_read_everywhere_stays_with_home_workers_alone() -> None:
    schedule = planned(fleet(4, 4, 50), chain(), rule(12, list(range(12)), "w0", "w1"))
    assert {name for names in schedule.assignment.workers for name in names} == {"w0", "w1"}


def test_copies_of_a_pipeline_have_homes_of_their_own() -> None:
    home = rule(12, [0], "w0", "w1")
    search = with_replicas(auto, 2)
    schedule = search(fleet(4, 4, 8, 8), chain(), Options(budget=100, workers=4, home=home))
    assert home.allows(schedule.assignment) and schedule.assignment.shares
    assert set(schedule.assignment.workers[0]) == {"w0", "w1"}


def test_a_home_worker_without_memory_for_its_part_is_named() -> None:
    large = fleet(1, 10)
    small = WorkerSpec("w0", "", 1e-12, 1e-8)
    topology = msgspec.structs.replace(large, workers=(small, large.workers[1]))
    with pytest.raises(PlanError, match=r"no plan keeps inputs and targets at home.*w0 has .*--memory"):
        auto(topology, chain(), Options(budget=50, home=rule(12, list(range(12)), "w0")))


def test_without_a_home_worker_there_is_no_plan() -> None:
    with pytest.raises(PlanError, match="no home worker is there"):
        auto(fleet(1, 10), chain(), Options(budget=50, home=rule(12, [0], "laptop")))


def is_enough(worker: WorkerSpec, workload: Workload) -> bool:
    """Whether a worker has the memory to train alone, as slow as that may be."""
    alone = Assignment((), ((worker.id,),), workload.microbatches, min(workload.microbatches, 2))
    trains = bool(workload.trainable_bytes.any())
    return trains and memory_of(workload, alone, worker.id) <= worker.memory_gb * 1e9


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
@example(seed=213)  # a loop that ties allow, in a search without tables of such loops
def test_every_plan_keeps_data_at_home(seed: int) -> None:
    draw = random.Random(seed)
    count, nodes = draw.randint(1, 6), draw.randint(4, 14)
    topology = random_topology(seed, count)
    workload = random_workload(seed, nodes, ties=seed % 3 == 0)
    bound = [at for at in range(nodes) if draw.random() < draw.choice([0.1, 0.3])]
    names = draw.sample(topology.ids, draw.randint(1, count))
    replicas = draw.choice([1, 1, count])
    home = rule(nodes, bound, *names)
    try:
        schedule = auto(topology, workload, Options(budget=60, home=home, most_replicas=replicas))
    except PlanError:
        assert not any(is_enough(worker, workload) for worker in topology.workers if worker.id in names)
        return
    require_valid(schedule, topology)
    assert home.allows(schedule.assignment)
    assert all(a != b for a, b in pairwise(schedule.assignment.workers))


def test_nothing_bound_changes_no_plan_that_is_best_anyway() -> None:
    topology, workload = fleet(5, 5), chain_workload([10.0] * 6, [UNIT // 100] * 5)
    free = auto(topology, workload, Options(budget=150))
    bound = auto(topology, workload, Options(budget=150, home=rule(6, [], "w0")))
    assert bound.step_seconds <= 1.05 * free.step_seconds


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_a_number_of_workers_is_kept(workers: int) -> None:
    schedule = planned(fleet(5, 5, 5, 5), chain(), rule(12, [0, 11], "w1", "w3"), workers=workers)
    assert len({name for names in schedule.assignment.workers for name in names}) == workers

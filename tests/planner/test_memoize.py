"""What is kept with a workload changes no answer, and goes with it."""

from __future__ import annotations

import gc
import weakref

import pytest
from tests.planner.workloads import random_topology, random_workload

from farflung.planner.assignment import Options
from farflung.planner.bounds import lower_bound_seconds
from farflung.planner.memoize import once
from farflung.planner.registry import SCHEDULERS
from farflung.workload import Workload


def test_a_workload_is_asked_once_for_each_of_the_arguments() -> None:
    asked: list[tuple[str, int]] = []

    @once
    def nodes(workload: Workload, more: int) -> int:
        asked.append((workload.name, more))
        return len(workload) + more

    first, second = random_workload(1, 5), random_workload(2, 7)
    assert [nodes(first, 1), nodes(first, 1), nodes(first, 2), nodes(second, 1)] == [6, 6, 7, 8]
    assert len(asked) == 3


def test_what_is_kept_goes_with_its_workload() -> None:
    workload = random_workload(1, 12, ties=True)
    lower_bound_seconds(random_topology(1, 3), workload)
    gone = weakref.ref(workload)
    del workload
    gc.collect()
    assert gone() is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["equal-count", "op-fence-plus", "auto"])
def test_a_workload_that_was_planned_before_gets_the_plan_of_a_new_one(name: str) -> None:
    fleets = [random_topology(seed, 4, memory=1e5) for seed in (1, 2, 3)]
    used = random_workload(4, 12, ties=True)
    for fleet in fleets:
        found = SCHEDULERS[name](fleet, used, Options(budget=12))
        fresh = SCHEDULERS[name](fleet, random_workload(4, 12, ties=True), Options(budget=12))
        assert found.assignment == fresh.assignment and found.step_seconds == fresh.step_seconds
        assert found.lower_bound_seconds == fresh.lower_bound_seconds

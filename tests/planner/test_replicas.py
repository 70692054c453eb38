"""Plans with as many replicas as are asked for, by any scheduler."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.plans import require_valid
from tests.planner.workloads import UNIT, chain_workload, random_topology, random_workload

from farflung.errors import PlanError
from farflung.planner.assignment import Options, Schedule
from farflung.planner.codecs.wishes import scheduler_for
from farflung.planner.objective.closed_form import step_seconds as closed_form
from farflung.planner.registry import scheduler
from farflung.planner.replicas import (
    alike_workers,
    possible,
    require_possible,
    scheduler_for_replicas,
    shared_out,
    with_replicas,
)
from farflung.planner.run import predict
from farflung.plans import CodecWishes, Topology, WorkerSpec
from farflung.plans.ability import Ability
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.training import Training
from farflung.simulator import Conditions, simulate
from farflung.workload import Workload


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(["auto", "equal-compute", "op-fence"]))
def test_a_plan_has_the_replicas_that_were_asked_for(seed: int, name: str) -> None:
    workload, topology = random_workload(seed, 8), random_topology(seed, 6, memory=4000.0)
    found = with_replicas(scheduler(name), 2)(topology, workload, Options(budget=60))
    assert found.plan.replicas == possible(2, 6, workload.microbatches)
    require_valid(found, topology)
    workers = found.plan.workers()
    assert len(set(workers)) == len(workers)


def test_all_workers_are_used_that_can_be_shared_out() -> None:
    workload, topology = random_workload(3, 12), random_topology(3, 6, memory=4000.0)
    found = with_replicas(scheduler("equal-compute"), 2)(topology, workload, Options(workers=6))
    assert (found.plan.replicas, len(found.plan.workers())) == (2, 6)
    found = with_replicas(scheduler("equal-compute"), 2)(topology, workload, Options(workers=5))
    assert (found.plan.replicas, len(found.plan.workers())) == (2, 4)


@pytest.mark.parametrize(
    ("asked", "workers", "microbatches", "found"), [(4, 3, 8, 3), (4, 8, 2, 2), (0, 8, 8, 1)]
)
def test_there_are_no_more_replicas_than_workers_and_microbatches(
    asked: int, workers: int, microbatches: int, found: int
) -> None:
    assert possible(asked, workers, microbatches) == found


def test_replicas_run_on_workers_that_compute_the_same_bits() -> None:
    abilities = {
        "a": Ability(1, (), "torch 2.13", "cpu", "x"),
        "b": Ability(1, (), "jax 0.10", "cpu", "y"),
        "c": Ability(1, (), "torch 2.13", "cpu", "x"),
        "d": Ability(1, (), "torch 2.13", "cpu", "z"),
    }
    assert alike_workers(["a", "b", "c", "d"], abilities) == ["a", "c"]
    assert alike_workers(["d", "b"], abilities) == ["d"]
    assert alike_workers(["e", "f"], {}) == ["e", "f"]
    assert alike_workers([], {}) == []


@pytest.mark.parametrize(
    ("replicas", "workers", "microbatches", "words"),
    [
        (8, 4, 8, "4 workers cannot be shared out among 8 replicas: ask for at most 4"),
        (2, 3, 8, "3 workers cannot be shared out among 2 replicas"),
        (2, 4, 1, r"the job has 1 microbatch: set Job\(microbatches=2\) or more"),
    ],
)
def test_replicas_that_cannot_be_are_refused_before_a_plan_is_made(
    replicas: int, workers: int, microbatches: int, words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        require_possible(replicas, workers, microbatches)


def test_any_number_that_shares_workers_out_may_be_tried() -> None:
    given = Training(1, 4, 1, SGD(lr=0.1))
    assert (
        shared_out(4, given) == [1, 2, 4]
        and shared_out(6, given) == [1, 2, 3]
        and shared_out(1, given) == [1]
    )
    require_possible(0, 3, 1)


def test_a_search_of_several_parts_says_which_one_it_is_at() -> None:
    said: list[str] = []
    search = scheduler_for(
        CodecWishes(every="auto", sums="auto"), scheduler_for_replicas("auto", 0), Conditions()
    )
    fleet = far_apart(["north", "south"], 10.0)
    search(
        fleet, chain_workload([1.0] * 4, [UNIT] * 3), Options(budget=8, most_replicas=2, stage=said.append)
    )
    pipelines = ["", ", one pipeline and copies of it", ", replicas with cuts of their own"]
    lines = [
        f", {lines}{more}" for lines in ("lines as they are", "lines as if compressed") for more in pipelines
    ]
    assert said == [
        f"{sums}{more}"
        for sums in ("sums dense", "sums by int8")
        for more in ("", *lines, ", codecs for the best plans")
    ]
    said.clear()
    scheduler_for_replicas("auto", 2)(
        fleet, chain_workload([1.0] * 4, [UNIT] * 3), Options(budget=8, most_replicas=2, stage=said.append)
    )
    assert said == ["2 replicas", "replicas with cuts of their own"]


def far_apart(sites: list[str], mbps: float) -> Topology:
    """Workers at these sites, with slow links from site to site."""
    specs = tuple(WorkerSpec(f"w{n}", site, 1.0, 8.0) for n, site in enumerate(sites))
    rates = tuple(tuple(10_000.0 if a == b else mbps for b in sites) for a in sites)
    return Topology(specs, tuple((1.0,) * len(sites) for _ in sites), rates)


def planned_with(sums: str, topology: Topology, inner_steps: int = 1) -> Schedule:
    search = scheduler_for(CodecWishes(sums=sums), with_replicas(scheduler("auto"), 2), Conditions())
    megabyte = np.full(8, 1e6)
    chain = replace(chain_workload([1.0] * 8, [UNIT] * 7), parameter_bytes=megabyte, trainable_bytes=megabyte)
    return search(topology, chain, Options(budget=60, most_replicas=2, inner_steps=inner_steps))


def test_a_codec_on_sums_is_simulated_between_sites_and_not_within_one() -> None:
    apart, together = far_apart(["north", "south"], 1.0), far_apart(["north", "north"], 1.0)
    dense, coded = planned_with("dense", apart), planned_with("int8", apart)
    assert (dense.plan.sum_codec, coded.plan.sum_codec) == ("dense", "int8")
    assert dense.step_seconds / 4 < coded.step_seconds < dense.step_seconds / 2
    for plan in (dense.plan, coded.plan):
        bound = closed_form(plan, apart)
        assert bound <= simulate(plan, apart).step_seconds
    assert planned_with("int8", together).step_seconds == planned_with("dense", together).step_seconds


def test_auto_codes_sums_where_a_step_gets_shorter() -> None:
    slow, fast = far_apart(["north", "south"], 1.0), far_apart(["north", "south"], 1e5)
    chosen = planned_with("auto", slow)
    assert chosen.plan.sum_codec == "int8"
    assert any("sums of gradients are written by int8 between sites" in note for note in chosen.notes)
    assert planned_with("auto", fast).plan.sum_codec == "dense"


def test_to_leave_the_codec_of_sums_open_takes_no_budget_from_the_search_without_one() -> None:
    """With half of it a search over eight homes found a longer step than one without replicas did."""
    budgets = []

    def recording(topology: Topology, workload: Workload, options: Options) -> Schedule:
        budgets.append((options.sum_codec, options.budget))
        return scheduler("auto")(topology, workload, options)

    chain = chain_workload([1.0] * 4, [UNIT] * 3)
    search = scheduler_for(CodecWishes(sums="auto"), recording, Conditions())
    search(far_apart(["north", "south"], 1.0), chain, Options(budget=60, most_replicas=2))
    assert [one for one in budgets if one[0] == "dense"] == [("dense", 60)]


@pytest.mark.parametrize(("inner_steps", "words"), [(1, "would take"), (20, "on average, merges included")])
def test_a_prediction_says_what_training_apart_gains(inner_steps: int, words: str) -> None:
    topology = far_apart(["north", "south"], 1.0)
    plan = planned_with("dense", topology, inner_steps).plan
    assert plan.inner_steps == inner_steps
    found = predict(plan, topology, CodecWishes(), 100, Conditions())
    assert len(found.notes) == 1 and words in found.notes[0]
    other = msgspec.structs.replace(plan, inner_steps=21 - inner_steps)
    seconds = [simulate(one, topology).step_seconds for one in (plan, other)]
    assert min(seconds) < 0.5 * max(seconds)
    assert closed_form(plan, topology) <= seconds[0]

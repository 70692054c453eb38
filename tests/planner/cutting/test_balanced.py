from __future__ import annotations

import itertools

import pytest
from benchmarks.zoo import CASES, Case, case
from benchmarks.zoo.side_by_side import captured, placed, workers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.workloads import chain_workload
from tests.support.random_graphs import random_graph

from farflung.errors import PlanError
from farflung.opdag.graph import Graph
from farflung.planner import PlannedJob, plan_graph, plan_job
from farflung.planner.cutting.balanced import balanced_cut
from farflung.plans import FEEDER


def require_sound(graph: Graph, job: PlannedJob, names: list[str]) -> None:
    plan, segments = job.plan, job.segments
    assert plan.workers() == names
    assert [p.segment for p in plan.placements] == [s.number for s in segments] == list(range(len(segments)))
    for segment in segments:
        mine = [edge for edge in plan.edges if edge.target == segment.number]
        fed = {edge.value for edge in mine if edge.source == FEEDER}
        assert fed == {entry.value for entry in segment.inputs if entry.kind == "input"}
        assert {edge.value for edge in mine} - fed == set(segment.receives)
        assert all(edge.value in segments[edge.source].sends for edge in mine if edge.source != FEEDER)
        assert all(edge.bytes == graph.values[edge.value].bytes(2) for edge in mine)
    holders: dict[str, set[str]] = {}
    for segment in segments:
        for entry in segment.inputs:
            if entry.kind == "parameter":
                holders.setdefault(entry.name, set()).add(plan.worker_of(segment.number))
    assert all(len(found) == 1 for found in holders.values())
    owned = [name for segment in job.segments for name in segment.owned]
    assert sorted(set(owned) & set(holders)) == sorted(holders)
    assert 1 <= plan.window <= plan.microbatches


@pytest.mark.cases(8)
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_models_on_workers(entry: Case, count: int) -> None:
    _, graph = captured(entry, 2)
    require_sound(graph, plan_graph(graph, 3, 2, workers(count)), workers(count))


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 4))
def test_random_graphs_are_placed_or_refused(seed: int, count: int) -> None:
    graph = random_graph(seed)
    try:
        job = plan_graph(graph, 3, 2, workers(count))
    except PlanError as error:
        assert "fewer workers" in str(error)
        return
    require_sound(graph, job, workers(count))


def test_work_is_balanced() -> None:
    _, graph = captured(case("gpt"), 2)
    flops = [p.flops for p in plan_graph(graph, 4, 2, workers(4)).plan.placements]
    assert max(flops) < 1.5 * sum(flops) / 4


def test_blocks_are_not_cut_inside_to_balance_a_little() -> None:
    """Eight blocks for six workers: two of them on one are 1.5 times its share, a cut inside four times."""
    values = [1 if at % 4 == 3 else 4 for at in range(8 * 4 - 1)]
    workload = chain_workload(flops=[10.0] * 32, crossing=values)
    cuts = balanced_cut(workload, 6).cuts
    assert all(at % 4 == 0 for at in cuts)
    assert max(b - a for a, b in itertools.pairwise([0, *cuts, 32])) == 8
    assert len(balanced_cut(workload, 20).cuts) == 19


def test_a_tied_table_stays_on_the_first_worker() -> None:
    """Embedding and head on one worker: one segment more than workers, a loop."""
    _, graph = captured(case("gpt2-fused"), 2)
    job = plan_graph(graph, 4, 2, workers(3))
    assert [p.worker for p in job.plan.placements] == [*workers(3), "worker-0"]
    assert job.plan.segments_of("worker-0") == [0, 3]


def test_a_shared_layer_stays_in_one_segment() -> None:
    _, graph = captured(case("shared-module"), 2)
    job = plan_graph(graph, 4, 2, workers(2))
    assert sum("shared.weight" in [e.name for e in s.inputs] for s in job.segments) == 1


def test_too_many_workers() -> None:
    _, graph = captured(case("chain"), 2)
    with pytest.raises(PlanError, match="at most 5 segments, 6 were asked for"):
        plan_job(graph, 4, 2, workers(6))
    assert plan_job(graph, 4, 2, workers(6), exactly=False).plan.workers() == workers(5)
    with pytest.raises(PlanError, match="farflung join"):
        plan_job(graph, 4, 2, [])


def test_a_parameter_on_two_workers_is_refused() -> None:
    _, graph = captured(case("gpt-tied"), 2)
    with pytest.raises(PlanError, match="must stay on one"):
        placed(graph, [len(graph.nodes) // 2], workers(2), 4, 2)


def test_cut_bytes_count_what_crosses() -> None:
    """One linear result of 2 x 16 floats goes forth, its gradient comes back."""
    _, graph = captured(case("chain"), 2)
    assert placed(graph, [1], workers(2), 4, 2).cut_bytes == 2 * 2 * 16 * 4
    assert plan_graph(graph, 4, 2, workers(1)).cut_bytes == 0

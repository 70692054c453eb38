from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models import CASES, Case
from tests.opdag.random_graphs import random_graph
from tests.runtime.side_by_side import captured

from farflung.opdag.cuts import cut_costs
from farflung.opdag.graph import Graph
from farflung.planner import place
from farflung.planner.assignment import Assignment, plan_of
from farflung.runtime.footprint import required_bytes
from farflung.workload import workload_of

BATCH = 2


def random_assignment(graph: Graph, seed: int) -> Assignment:
    costs = cut_costs(graph, BATCH)
    legal = [at for at, ok in enumerate(costs.legal) if ok and 0 < at < len(graph.nodes)]
    draw = random.Random(seed)
    cuts = tuple(sorted(draw.sample(legal, min(len(legal), draw.randint(0, 4)))))
    return Assignment(cuts, (("a",),) * (len(cuts) + 1), 3, 2)


def require_the_same_plan(graph: Graph, assignment: Assignment) -> None:
    workload = workload_of(graph, 3, BATCH)
    ours = plan_of(workload, assignment)
    real = place(graph, assignment.cuts, [w[0] for w in assignment.workers], 3, BATCH)
    for mine, theirs in zip(ours.placements, real.plan.placements, strict=True):
        assert mine.flops <= theirs.flops  # what is recomputed costs something, and is not planned for
        assert mine.parameter_bytes == theirs.parameter_bytes
    expected = {(e.value, e.source, e.target, e.bytes, e.differentiable) for e in real.plan.edges}
    assert {(e.value, e.source, e.target, e.bytes, e.differentiable) for e in ours.edges} == expected


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_costs_alone_give_the_plan_that_the_graph_gives(entry: Case) -> None:
    _, graph = captured(entry, BATCH)
    for seed in range(5):
        require_the_same_plan(graph, random_assignment(graph, seed))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_crossing_bytes_are_those_of_the_cut_costs(seed: int) -> None:
    graph = random_graph(seed)
    workload = workload_of(graph, 3, BATCH)
    both = workload.crossing_forward + workload.crossing_backward
    inner = slice(1, len(graph.nodes))
    if any(entry.trainable for entry in graph.inputs):
        assert np.array_equal(both[inner], cut_costs(graph, BATCH).crossing[inner])


UNTIED = [entry for entry in CASES if not entry.summed_twice]


@pytest.mark.parametrize("entry", UNTIED, ids=lambda entry: entry.name)
def test_memory_of_a_range_is_close_to_what_its_worker_will_ask_for(entry: Case) -> None:
    _, graph = captured(entry, BATCH)
    workload = workload_of(graph, 3, BATCH)
    for seed in range(5):
        assignment = random_assignment(graph, seed)
        segments = place(graph, assignment.cuts, ["a"] * (len(assignment.cuts) + 1), 3, BATCH).segments
        for (start, stop), segment in zip(assignment.ranges(len(workload)), segments, strict=True):
            if not segment.owned:  # no plan has such a segment
                continue
            needed = required_bytes(segment, BATCH, assignment.window)
            assert 0.6 * needed <= workload.memory_bytes(start, stop, assignment.window) <= 1.3 * needed

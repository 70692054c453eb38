from __future__ import annotations

import itertools
import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models import case
from tests.opdag.random_graphs import random_graph
from tests.runtime.side_by_side import captured

from farflung.errors import PlanError
from farflung.opdag.cuts import CutCosts, balanced_cuts, cut_costs

SLACK = 0.1


def random_costs(draw: random.Random, count: int) -> CutCosts:
    legal = np.array([True, *(draw.random() < 0.8 for _ in range(count - 1)), True])
    return CutCosts(
        flops=np.array([float(draw.randint(0, 20)) for _ in range(count)]),
        crossing=np.array([float(draw.randint(1, 50)) for _ in range(count + 1)]),
        legal=legal,
        parameters=np.array([draw.choice([0, 0, 1, 2]) for _ in range(count)]),
    )


def feasible(costs: CutCosts, segments: int) -> list[tuple[float, float, list[int]]]:
    """(largest work, bytes, cuts) of every legal choice of cuts."""
    count = len(costs.flops)
    places = [at for at in range(1, count) if costs.legal[at]]
    found = []
    for cuts in itertools.combinations(places, segments - 1):
        ends = [0, *cuts, count]
        spans = list(itertools.pairwise(ends))
        if all(costs.parameters[a:b].sum() > 0 for a, b in spans):
            work = max(float(costs.flops[a:b].sum()) for a, b in spans)
            found.append((work, float(sum(costs.crossing[at] for at in cuts)), list(cuts)))
    return found


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 9), segments=st.integers(1, 5))
def test_cuts_are_the_best_there_are(seed: int, count: int, segments: int) -> None:
    costs = random_costs(random.Random(seed), count)
    choices = feasible(costs, segments)
    if not choices:
        with pytest.raises(PlanError):
            balanced_cuts(costs, segments, SLACK)
        return
    limit = min(work for work, _, _ in choices) * (1 + SLACK) + 1
    cuts = balanced_cuts(costs, segments, SLACK)
    (chosen,) = [choice for choice in choices if choice[2] == cuts]
    assert chosen[0] <= limit
    assert chosen[1] == min(size for work, size, _ in choices if work <= limit)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 9))
def test_the_error_says_how_many_segments_there_can_be(seed: int, count: int) -> None:
    costs = random_costs(random.Random(seed), count)
    most = max((k for k in range(1, count + 1) if feasible(costs, k)), default=0)
    expected = f"at most {most} segments, {count + 1} were asked for" if most else "no trainable parameter"
    with pytest.raises(PlanError, match=expected):
        balanced_cuts(costs, count + 1)


def test_too_many_segments_are_refused_at_once() -> None:
    _, graph = captured(case("chain"), 2)
    with pytest.raises(PlanError, match="at most 5 segments, 100000 were asked for: use fewer workers"):
        balanced_cuts(cut_costs(graph, 2), 100_000)


def test_crossing_bytes_count_both_directions() -> None:
    """A linear layer's result crosses as it is and its gradient comes back: 2 x 2 x 16 x 4 bytes."""
    _, graph = captured(case("chain"), 2)
    costs = cut_costs(graph, 2)
    assert costs.crossing[1] == 2 * 2 * 16 * 4
    assert costs.crossing[0] == costs.crossing[len(graph.nodes)] == 0
    assert costs.parameters.sum() == 10


def test_a_mutated_buffer_stays_in_one_piece() -> None:
    _, graph = captured(case("batch-norm"), 2)
    costs = cut_costs(graph, 2)
    buffers = {e.name: e.value for e in graph.inputs_of("buffer")}
    producers = graph.producers()
    for name, value in graph.mutations.items():
        uses = [at for at, node in enumerate(graph.nodes) if buffers[name] in node.reads()]
        for at in range(min(uses) + 1, producers[value] + 1):
            assert not costs.legal[at]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_turning_the_circle_keeps_the_work(seed: int) -> None:
    graph = random_graph(seed)
    costs = cut_costs(graph, 2)
    start = 1 + seed % (len(graph.nodes) - 1)
    turned = costs.rotated(start)
    assert turned.flops.sum() == costs.flops.sum()
    assert turned.parameters.sum() == costs.parameters.sum()
    kept = len(graph.nodes) - start
    assert list(turned.crossing[:kept]) == list(costs.crossing[start:-1])
    assert not turned.legal[kept + 1 : -1].any()


def test_cutting_1300_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """DESIGN: 1,266 nodes in under two seconds; printed, never asserted."""
    graph = random_graph(1, steps=960, most_uses=1)
    start = time.process_time()
    costs = cut_costs(graph, 2)
    cuts = balanced_cuts(costs, 8)
    elapsed = time.process_time() - start
    assert len(cuts) == 7
    with capsys.disabled():
        print(f"\n{len(graph.nodes)} nodes into 8 segments: {elapsed:.2f} s of CPU")

"""Pipelines of a plan: who runs which microbatch, and who adds up which gradient."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.plans import (
    FEEDER,
    Edge,
    Pipeline,
    Placement,
    Plan,
    Sum,
    dealt,
    side_by_side,
    single_pipelines,
    unfolded,
)
from farflung.plans import folded as refolded

SHARES = st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple)


@given(SHARES)
def test_each_pipeline_runs_its_share_of_a_step(shares: tuple[int, ...]) -> None:
    parts = dealt(sum(shares), shares)
    assert [len(part) for part in parts] == list(shares)
    assert sorted(number for part in parts for number in part) == list(range(sum(shares)))
    assert all(list(part) == sorted(part) for part in parts)


@given(SHARES, st.integers(0, 40))
def test_no_pipeline_is_ever_a_microbatch_ahead_of_its_share(shares: tuple[int, ...], count: int) -> None:
    parts = dealt(count, shares)
    for now in range(count + 1):
        for share, part in zip(shares, parts, strict=True):
            run = sum(number < now for number in part)
            assert run - now * share / sum(shares) < 1


def folded(sites: int = 1) -> Plan:
    """Two segments in four replicas, of which the first gets half of a step's microbatches."""
    names = [[f"{stage}{replica}" for replica in range(4)] for stage in "ab"]
    placements = [Placement(n, workers, 10, 16, 1) for n, workers in enumerate(names)]
    edges = [Edge(0, FEEDER, 0, 8, False), Edge(1, 0, 1, 32, True)]
    return Plan(placements, edges, 8, 2, [4, 2, 1, 1])


def plan() -> Plan:
    """That plan unfolded, with two replicas at one site."""
    sites = {"a0": "home", "a2": "home", "b0": "home", "b2": "home"}
    return unfolded(folded(), [{10: 100, 11: 40, 12: 60}, {13: 8}], sites)


def test_replicas_become_pipelines_with_segments_of_their_own() -> None:
    found = plan()
    assert [p.workers for p in found.placements] == [[f"{s}{r}"] for r in range(4) for s in "ab"]
    assert [(one.segments, one.microbatches) for one in found.pipelines] == [(2, 4), (2, 2), (2, 1), (2, 1)]
    assert [(e.source, e.target) for e in found.edges] == [
        pair for r in range(4) for pair in ((FEEDER, 2 * r), (2 * r, 2 * r + 1))
    ]
    assert [found.pipeline_of(segment) for segment in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [found.microbatches_of(2 * r, 8) for r in range(4)] == list(dealt(8, (4, 2, 1, 1)))


def test_what_is_near_is_added_first_and_owners_carry_alike() -> None:
    found = {one.value: one for one in plan().sums}
    assert found.keys() == {10, 11, 12, 13}
    assert found[10].groups == [[0, 4], [2], [6]] and found[13].groups == [[1, 5], [3], [7]]
    assert {one.owner for value, one in found.items() if value != 13} == {
        found[value].owner for value in (10, 11, 12)
    }
    assert len({found[value].owner for value in (10, 11, 12)}) == 3  # each group has one
    assert found[10].heads != found[12].heads  # those of a group take turns


def test_a_worker_links_to_those_with_which_it_sums() -> None:
    found = plan()
    near = found.neighbours("a1")
    assert "b1" in near and near & {"a0", "a2", "a3"}
    assert all(a in found.neighbours(b) for a in found.workers() for b in found.neighbours(a))


def test_a_plan_of_one_pipeline_stays_as_it_is() -> None:
    one = Plan([Placement(0, ["a"], 1, 1, 1)], [], 4, 2)
    assert unfolded(one, [{1: 4}], {}) is one
    assert one.pipeline_of(0) == 0 and list(one.microbatches_of(0, 3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"pipelines": [Pipeline(2, 8)]}, "must have all of its segments"),
        ({"pipelines": [Pipeline(2, 2)] * 4, "microbatches": 9}, "run all of its microbatches"),
        ({"sums": [Sum(1, 4, [[0], [2]], [0, 2], 0)]}, "one segment in each of its sums"),
        ({"sums": [Sum(1, 4, [[0], [2], [4], [40]], [0, 2, 4, 40], 0)]}, "one segment in each of its sums"),
        ({"pipelines": []}, "nothing to sum"),
        ({"pipelines": [Pipeline(2, 2)] * 3 + [Pipeline(2, 2, 99)]}, "the widest of its pipelines"),
        ({"edges": [Edge(1, 0, 3, 32, True)]}, "from one pipeline of a plan to another"),
    ],
)
def test_pipelines_that_do_not_fit_together_are_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        msgspec.structs.replace(plan(), **changes)


def test_each_pipeline_may_have_a_window_of_its_own() -> None:
    whole = msgspec.structs.replace(plan(), window=5)
    own = [msgspec.structs.replace(whole.pipelines[0], window=2), *whole.pipelines[1:]]
    found = msgspec.structs.replace(whole, pipelines=own)
    assert [found.window_of(segment) for segment in range(8)] == [2, 2, *[5] * 6]
    assert [found.window_at(worker) for worker in ("a0", "b3", "stranger")] == [2, 5, 5]
    assert [one.window for one in single_pipelines(found)] == [2, 5, 5, 5]
    assert refolded(found) == found and refolded(whole).window == 5
    assert wire_names(found)["pipelines"][0]["window"] == 2


def wire_names(plan: Plan) -> dict[str, Any]:
    """The plan as its file has it; it reads back as the same."""
    text = msgspec.json.encode(plan)
    assert msgspec.json.decode(text, type=Plan) == plan
    return dict(msgspec.json.decode(text))


def test_a_worker_is_in_one_pipeline_only() -> None:
    found = plan()
    first = found.placements[0].workers
    placements = [*found.placements[:-1], msgspec.structs.replace(found.placements[-1], workers=first)]
    with pytest.raises(ValueError, match="must not be in two pipelines"):
        msgspec.structs.replace(found, placements=placements)


@pytest.mark.parametrize(
    ("groups", "heads", "owner", "complaint"),
    [
        ([[0]], [0], 0, "two segments or more"),
        ([[0], [0]], [0, 0], 0, "each once"),
        ([[0, 1]], [2], 2, "head of its own"),
        ([[0], [1]], [0, 1], 2, "owner must be one of them"),
        ([[0, 1], [2]], [0], 0, "head of its own"),
    ],
)
def test_a_sum_has_heads_and_an_owner(
    groups: list[list[int]], heads: list[int], owner: int, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Sum(1, 4, groups, heads, owner)


@given(st.integers(2, 6), st.data())
def test_what_arrives_for_a_sum_is_known_beforehand(count: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, count))
    groups = [list(range(cut))] + ([list(range(cut, count))] if cut < count else [])
    heads = [group[0] for group in groups]
    one = Sum(1, 4, groups, heads, data.draw(st.sampled_from(heads)))
    up = [one.head_of(segment) for segment in one.holders() if segment != one.owner]
    assert sum(one.messages_to(segment) for segment in one.holders()) == 2 * len(up)


def test_a_folded_plan_unfolds_to_the_same() -> None:
    sites = {"a0": "home", "a2": "home", "b0": "home", "b2": "home"}
    assert refolded(plan()) == folded()
    assert unfolded(refolded(plan()), [{10: 100, 11: 40, 12: 60}, {13: 8}], sites) == plan()
    assert refolded(folded()) == folded()


def test_cuts_that_differ_in_frozen_layers_alone_are_unlike() -> None:
    def pipeline(workers: str, flops: tuple[int, int]) -> Plan:
        placements = [
            Placement(n, [worker], flop, 4, 1)
            for n, (worker, flop) in enumerate(zip(workers, flops, strict=True))
        ]
        return Plan(placements, [Edge(1, 0, 1, 8, True)], 2, 2)

    adapters: list[dict[int, int]] = [{}, {5: 4}]
    first, other = pipeline("ab", (10, 90)), pipeline("cd", (70, 30))
    unlike = side_by_side(first, [first, other], [adapters, adapters], {})
    assert not unlike.has_equal_cuts and refolded(unlike) == unlike
    like = side_by_side(first, [first, pipeline("cd", (10, 90))], [adapters, adapters], {})
    assert like.has_equal_cuts and refolded(like).replicas == 2

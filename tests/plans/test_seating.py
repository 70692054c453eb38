"""Plans with replicas once workers were lost: who adds what, and who runs which microbatch."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plans.test_pipelines import SHARES, plan

from farflung.plans import FEEDER, LinkCodec, Plan, folded, seated
from farflung.plans.plan import LaterCodecs
from farflung.plans.seating import dealt_anew


def without(*pipelines: int) -> Plan:
    """Four pipelines of two segments without some of them."""
    whole = plan()
    seats = whole.seats().items()
    return seated(whole, {at: name for at, name in seats if whole.pipeline_of(at) not in pipelines})


@given(SHARES, st.sets(st.integers(0, 5), min_size=1))
def test_microbatches_of_a_lost_replica_are_dealt_in_the_old_proportion(
    shares: tuple[int, ...], live: set[int]
) -> None:
    live = {number % len(shares) for number in live}
    found, left = dealt_anew(shares, live), sum(shares[number] for number in live)
    assert sum(found) == sum(shares)
    for number, (before, now) in enumerate(zip(shares, found, strict=True)):
        exact = before * sum(shares) / left
        assert exact - 1 < now < exact + 1 if number in live else now == 0


def test_segments_keep_their_numbers_and_a_dropped_pipeline_has_no_workers() -> None:
    left = without(1)
    assert [placed.workers for placed in left.placements] == [
        ["a0"],
        ["b0"],
        [],
        [],
        ["a2"],
        ["b2"],
        ["a3"],
        ["b3"],
    ]
    assert [one.microbatches for one in left.pipelines] == [6, 0, 1, 1]
    assert left.live_pipelines() == [0, 2, 3] and left.workers() == ["a0", "b0", "a2", "b2", "a3", "b3"]
    assert {(e.source, e.target) for e in left.edges} == {
        pair for first in (0, 4, 6) for pair in ((FEEDER, first), (first, first + 1))
    }
    runs = [list(left.microbatches_of(2 * pipeline, 8)) for pipeline in range(4)]
    assert not runs[1] and sorted(number for one in runs for number in one) == list(range(8))


def test_sums_are_added_in_the_order_in_which_they_were_without_what_is_lacking() -> None:
    before, after = {one.value: one for one in plan().sums}, {one.value: one for one in without(0).sums}
    assert before.keys() == after.keys()
    for value, one in after.items():
        groups = [[at for at in group if at not in (0, 1)] for group in before[value].groups]
        assert one.groups == [group for group in groups if group]
        kept = [head for head in before[value].heads if head not in (0, 1)]
        assert set(kept) <= set(one.heads)
        assert one.owner == before[value].owner or before[value].owner in (0, 1)


def test_one_pipeline_that_is_left_sums_nothing_and_gives_the_state_home() -> None:
    left = without(0, 1, 3)
    assert left.sums == [] and left.home_pipeline == 2
    assert [one.microbatches for one in left.pipelines] == [0, 0, 8, 0]
    again = folded(left)
    assert [placed.workers for placed in again.placements] == [["a2"], ["b2"]] and again.replicas == 1
    assert again.edges == folded(plan()).edges


def test_other_workers_take_places_and_codecs_follow_them() -> None:
    codec = LinkCodec("a1", "b1", "int8", 4.0)
    whole = plan()
    phased = Plan(
        whole.placements, whole.edges, 8, 2, pipelines=whole.pipelines, sums=whole.sums,
        later=[LaterCodecs(3, [codec, LinkCodec("a3", "b3", "int8", 4.0)])],
    )  # fmt: skip
    seats = {at: name for at, name in whole.seats().items() if at < 6} | {2: "new"}
    found = seated(phased, seats, [LinkCodec("new", "b1", "int8", 4.0)])
    assert found.worker_of(2) == "new" and [(c.source, c.target) for c in found.codecs] == [("new", "b1")]
    assert [(c.source, c.target) for c in found.later[0].codecs] == [("new", "b1")]


def test_the_pipelines_that_are_left_keep_their_windows() -> None:
    whole = msgspec.structs.replace(plan(), window=5)
    own = [msgspec.structs.replace(whole.pipelines[0], window=2), *whole.pipelines[1:]]
    whole = msgspec.structs.replace(whole, pipelines=own)
    seats = {at: name for at, name in whole.seats().items() if whole.pipeline_of(at) in (0, 2)}
    left = seated(whole, seats)
    assert [one.window for one in left.pipelines] == [2, 0, 0, 0]
    assert [left.window_of(segment) for segment in (0, 4)] == [2, 5]


def test_a_pipeline_that_is_there_again_is_as_it_was() -> None:
    whole = plan()
    again = seated(whole, {**without(1, 2).seats(), 2: "x", 3: "y", 4: "a2", 5: "b2"})
    assert (again.sums, again.edges, again.pipelines) == (whole.sums, whole.edges, whole.pipelines)
    assert again.worker_of(2) == "x" and again.worker_of(3) == "y"


def test_half_a_pipeline_is_none() -> None:
    whole = plan()
    with pytest.raises(ValueError, match="must have a worker"):
        seated(whole, {at: name for at, name in whole.seats().items() if at != 3})

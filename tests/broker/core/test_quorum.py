"""Replicas that train apart and name a quorum go on without one that is lost or late."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.core.test_lost_sets import since
from tests.broker.core.test_mending import STEPS, place
from tests.broker.core.test_protection import job_of
from tests.broker.core.test_replaying import KERNELS, load_all, rollbacks
from tests.broker.scenario import Scenario, told

from farflung.broker.core import facts
from farflung.broker.core.recovering.mending import MOST_LATE
from farflung.broker.core.state import durable, replay
from farflung.protocol.messages import Planned
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.optimizers.diloco import DiLoCo


def apart(members: str = "abcdef", **sync: object) -> Scenario:
    """Three replicas of two workers each, which merge after each four steps; one unit is decided."""
    declared = DiLoCo(**{"inner_steps": 4, "quorum": 2, **sync})  # type: ignore[arg-type]
    return place(members, len(members) // 2, optimizer=SGD(0.1, diloco=declared))


def live(story: Scenario) -> list[int]:
    """The pipelines that train."""
    plan = job_of(story).plan
    assert plan is not None
    return plan.live_pipelines()


def runs_to(story: Scenario, unit: int) -> None:
    """Decide all units before this one. Some members may have reported the first of them."""
    while (now := job_of(story).next_unit) < unit:
        for worker in job_of(story).members:
            if job_of(story).next_unit == now:
                story.ready(worker, now)
        load_all(story)


def ends(story: Scenario) -> None:
    """The job comes to its end without a step that runs again, and its log gives the same state."""
    load_all(story)
    runs_to(story, STEPS + STEPS // 4)
    assert job_of(story).state == "collecting" and not rollbacks(story)
    decided = [fact.unit for fact in story.facts if isinstance(fact, facts.UnitDecided)]
    assert decided == list(range(STEPS + STEPS // 4))
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(map(facts.decode, log)) == durable(story.state)


def test_a_replica_that_loses_a_worker_is_left_out_and_the_others_keep_their_state() -> None:
    story = apart()
    first = len(story.commands)
    story.leave("d")
    job = job_of(story)
    assert (job.attempt, job.next_unit, job.members) == (2, 1, ("a", "b", "e", "f"))
    loads, others, stops = since(story, first)
    assert not loads and others.keys() == {"a", "b", "e", "f"} and stops.keys() == {"c"}
    assert job.plan is not None and [one.microbatches for one in job.plan.pipelines] == [3, 0, 3]
    assert [one.holders() for one in job.plan.sums] == [[0, 4], [1, 5]]
    ends(story)
    decided = [fact for fact in story.facts if isinstance(fact, facts.UnitDecided)]
    assert decided[1].scales[0] == decided[1].scales[2] == pytest.approx(2 * 1.0 / (2 * 8**0.5), rel=1e-6)


def test_it_is_there_again_after_a_merge_with_what_the_merge_left() -> None:
    story = apart()
    story.leave("d")
    story.join("d", boot="boot-2", device=KERNELS)
    load_all(story)
    runs_to(story, 4)
    assert live(story) == [0, 2]
    first = len(story.commands)
    story.all_ready(4)  # the merge after four steps
    loads, others, _ = since(story, first)
    assert loads.keys() == {"c", "d"} and others.keys() == {"a", "b", "e", "f"}
    assert loads["c"].unit == 5 and set(loads["c"].state_donors) == {2, 3}
    assert live(story) == [0, 1, 2]
    ends(story)


def test_without_a_quorum_all_go_back() -> None:
    for sync, lost in (({"quorum": None}, "d"), ({"quorum": 3}, "d"), ({}, "df")):
        story = apart(**sync)
        for worker in lost:
            story.leave(worker)
        assert len(rollbacks(story)) == 1, sync


def test_in_the_warm_up_the_first_replica_cannot_be_left_out() -> None:
    for lost, goes_on in (("a", False), ("c", True)):
        story = apart(warmup=3)
        story.leave(lost)
        assert bool(rollbacks(story)) != goes_on, lost
    story = apart(warmup=3)
    runs_to(story, 4)  # the others have taken its parameters over
    story.leave("a")
    assert live(story) == [1, 2] and not rollbacks(story)


def test_a_late_replica_is_left_out_once_the_others_have_waited() -> None:
    story = apart(grace=20.0)
    for worker in "abef":
        story.ready(worker, 1)
    story.ready("c", 1)
    story.tick(15.0)
    assert live(story) == [0, 1, 2]
    first = len(story.commands)
    story.tick(10.0)
    assert live(story) == [0, 2] and since(story, first)[2].keys() == {"c", "d"}
    planned = [message for message in told(story.commands[first:]) if isinstance(message, Planned)][-1]
    assert planned.reason == "replica 2: more than 20 s later with step 2 than 2 others"
    assert {name: story.state.workers[name].idle for name in "cd"} == {"c": True, "d": True}
    ends(story)
    assert live(story) == [0, 1, 2]


def test_fewer_than_a_quorum_wait_for_the_rest() -> None:
    story = apart(grace=20.0)
    for worker in "abe":
        story.ready(worker, 1)
    story.tick(60.0)
    assert live(story) == [0, 1, 2] and job_of(story).attempt == 1


def test_the_grace_counts_from_the_quorum_and_not_from_the_last_report() -> None:
    story = apart(grace=20.0)
    for worker in "abef":
        story.ready(worker, 1)
    story.tick(18.0)
    story.ready("c", 1)
    story.tick(2.0)
    assert live(story) == [0, 2]


def test_a_replica_that_is_late_again_and_again_is_not_taken_back() -> None:
    story = apart(grace=20.0)
    for round in range(1, MOST_LATE + 1):
        unit = job_of(story).next_unit
        for worker in "abef":
            story.ready(worker, unit)
        story.tick(60.0)
        assert live(story) == [0, 2]
        load_all(story)
        runs_to(story, 5 * round)
        assert live(story) == ([0, 1, 2] if round < MOST_LATE else [0, 2])
    ends(story)


def test_no_replica_is_late_in_a_merge_or_while_one_trains_alone() -> None:
    story = apart(grace=20.0, warmup=2)
    for unit in (1, 2):  # a step of the first one alone, and the merge in which the others take over
        for worker in "abef":
            story.ready(worker, unit)
        story.tick(60.0)
        assert live(story) == [0, 1, 2]
        for worker in "cd":
            story.ready(worker, unit)


def test_the_last_replica_replays_a_lost_share_as_one_pipeline_does() -> None:
    declared = DiLoCo(inner_steps=4, quorum=1)
    story = place("abcd", disk_bytes=10**9, optimizer=SGD(0.1, diloco=declared))
    story.logged_from = 0
    story.leave("d")
    load_all(story)
    while (job := job_of(story)).versions.under_way is None:
        story.all_ready(job.next_unit)
    for share, owner in enumerate("ab"):
        for worker in (owner, job.holders[owner]):
            story.copied(worker, job.versions.under_way.name.unit, share)
    assert job_of(story).versions.stable is not None
    story.leave("b")
    assert not rollbacks(story) and job_of(story).replayers == ("c",)  # of the replica that was left out


EVENTS = st.lists(
    st.tuples(st.sampled_from(["leave", "join", "late", "units"]), st.integers(0, 5)), min_size=1, max_size=14
)


@settings(max_examples=25, deadline=None)
@given(EVENTS)
def test_whatever_is_lost_or_late_no_decided_unit_runs_again_while_a_quorum_is_left(
    happenings: list[tuple[str, int]],
) -> None:
    """And the log gives the same state."""
    story = apart(quorum=1, grace=20.0)
    for what, number in happenings:
        job, worker = job_of(story), "abcdef"[number]
        if job.state != "running":
            break
        before, live_before = job.next_unit, live(story)
        if what == "leave" and story.state.workers[worker].connected:
            story.leave(worker)
        elif what == "join" and not story.state.workers[worker].connected:
            story.join(worker, boot=f"boot-{story.now}", device=KERNELS)
        elif what == "late":
            assert job.plan is not None
            late = live_before[number % len(live_before)]
            for name in job.members:
                if job.plan.pipeline_of(job.plan.segments_of(name)[0]) != late:
                    story.ready(name, before)
            story.tick(30.0)
            if job.unit is not None and job.unit.train:  # a merge waits for all, and may be complete by this
                is_out = len(live_before) > 1
                assert live(story) == [one for one in live_before if one != late or not is_out]
        elif what == "units":
            load_all(story)
            runs_to(story, min(before + number, STEPS))
        if rollbacks(story):
            assert what == "leave" and len(live_before) == 1
            break
        assert job_of(story).next_unit >= before
        load_all(story)
    decided = [fact.unit for fact in story.facts if isinstance(fact, facts.UnitDecided)]
    assert decided == [*range(len(decided))]
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(map(facts.decode, log)) == durable(story.state)

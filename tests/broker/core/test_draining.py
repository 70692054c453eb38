"""A worker leaves in good order: its share goes to another one, and the others lose nothing."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.broker.core import test_restoring
from tests.broker.core.test_protection import job_of
from tests.broker.core.test_replaying import KERNELS, continues, load_all, loads, place, rollbacks
from tests.broker.scenario import DEVICE, Scenario, sent, told

from farflung.broker.core import events, facts
from farflung.broker.core.events import Reply
from farflung.broker.core.fleet.draining import waits_for
from farflung.broker.core.protecting.homecoming import MOST_REFUSED
from farflung.broker.core.state import Outcome, durable, replay
from farflung.plans import Plan
from farflung.protocol.membership import Draining, Released
from farflung.protocol.messages import Decide, Denied, Kept, Planned, Stop
from farflung.runtime.monitoring import Monitor


def shares_of(plan: Plan | None) -> dict[str, int]:
    """The share of each worker."""
    assert plan is not None
    return {worker: min(plan.segments_of(worker)) for worker in plan.workers()}


def spread(story: Scenario, unit: int) -> None:
    """Every share of a version arrives on both disks, also if the members have changed."""
    plan = job_of(story).plan
    assert plan is not None
    for owner in plan.workers():
        share = min(plan.segments_of(owner))
        story.copied(owner, unit, share)
        story.copied(job_of(story).holder_of(owner), unit, share)


def leave(story: Scenario, worker: str, within: float = 600.0, operator: str = "") -> Outcome:
    return story.feed(events.LeaveAsked(story.now, worker, within, operator))


def answers_to(outcome: Outcome) -> list[object]:
    return [one.message for one in outcome.commands if isinstance(one, Reply)]


def released(story: Scenario, worker: str) -> list[str]:
    return [one.reason for one in sent(story.commands, worker) if isinstance(one, Released)]


def words(story: Scenario, worker: str) -> str:
    return waits_for(story.state, story.state.workers[worker])


def next_unit(story: Scenario) -> int:
    return job_of(story).next_unit


def is_whole(story: Scenario) -> bool:
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    return replay(map(facts.decode, log)) == durable(story.state)


def decide_unit(story: Scenario) -> int:
    """Decide the next unit; its number."""
    unit = next_unit(story)
    story.all_ready(unit)
    return unit


def hand_over(story: Scenario, worker: str) -> int:
    """Bring a worker's wish to leave to the end of its part in the job; the unit of the version."""
    unit = decide_unit(story)
    spread(story, unit)
    assert worker in job_of(story).members  # a unit is in flight
    decide_unit(story)
    assert worker not in job_of(story).members
    return unit


def test_an_idle_worker_may_go_at_once_and_takes_no_other_job() -> None:
    story = Scenario("a", "b")
    leave(story, "b")
    assert released(story, "b") == ["it left in good order: its owner stops it"]
    gone = story.state.workers["b"]
    assert (gone.connected, gone.released, gone.gone_at) == (False, True, gone.gone_at) and gone.gone_at
    story.submit(2)
    assert "waiting for 1 more worker" in told(story.commands)[-1].state  # type: ignore[union-attr]
    assert is_whole(story)


def test_a_share_goes_to_an_idle_worker_between_two_units_and_nobody_runs_a_unit_again() -> None:
    story = place(units=8)
    leave(story, "b")
    assert words(story, "b") == "for copies of job-1's state"
    unit = decide_unit(story)
    assert [fact for fact in story.facts if isinstance(fact, facts.UnitDecided)][-1].copy
    spread(story, unit)
    assert job_of(story).attempt == 1 and words(story, "b") == "for the end of a step of job-1"
    story.ready("a", unit + 1)
    story.ready("c", unit + 1)
    story.ready("b", unit + 1)
    job = job_of(story)
    assert (job.state, job.attempt, job.replayers, job.members) == ("loading", 2, ("d",), ("a", "d", "c"))
    (load,) = loads(story)
    assert (load.unit, len(load.history)) == (unit + 1, 1)  # only what was decided while copies were made
    assert {name: one.unit for name, one in continues(story).items()} == {"a": unit + 2, "c": unit + 2}
    assert [one.attempt for one in sent(story.commands, "b") if isinstance(one, Stop)] == [1]
    planned = [one for one in told(story.commands) if isinstance(one, Planned)][-1]
    assert planned.reason == "worker b leaves in good order (its owner stops it)" and planned.in_order
    assert planned.replayers == ["d"]
    assert not rollbacks(story) and not released(story, "b")
    assert words(story, "b") == "until its copies of job-1's state lie with two others"
    load_all(story)
    again = decide_unit(story)
    assert again == unit + 2
    spread(story, again)
    assert released(story, "b") == ["it left in good order: its owner stops it"] and is_whole(story)
    while job_of(story).state == "running":
        decide_unit(story)
    decided = [fact.unit for fact in story.facts if isinstance(fact, facts.UnitDecided)]
    assert decided == list(range(20))


def test_a_worker_that_nobody_can_replace_stays_and_says_so_until_its_deadline() -> None:
    story = Scenario("a", "b")  # without disks, and no checkpoint is saved
    story.running(2, steps=20, copies=0)
    leave(story, "b", within=120)
    decide_unit(story)
    assert words(story, "b") == "for a worker that can take its share of job-1"
    story.tick(60)
    assert job_of(story).members == ("a", "b") and not released(story, "b")
    story.tick(60)
    (reason,) = released(story, "b")
    assert reason == "it left with its share of job-1, which no worker took within 2 minutes"
    (back,) = rollbacks(story)
    assert "worker b left at step 2: it handed over no share within 2 minutes" in back.reason
    assert is_whole(story)


def test_without_a_worker_like_it_the_job_goes_on_from_fresh_copies_in_another_cut() -> None:
    story = place(units=8)
    story.leave("d")
    leave(story, "b")
    unit = decide_unit(story)
    spread(story, unit)
    assert words(story, "b") == "for the end of a step of job-1"
    decide_unit(story)
    assert [message.unit for message in rollbacks(story)] == [unit + 1]
    job = job_of(story)
    assert (job.state, job.members) == ("planning", ("a", "c")) and job.plan is not None
    assert not released(story, "b")  # its copies lie with no two others
    assert is_whole(story)


def test_where_one_other_worker_is_there_its_copies_are_enough() -> None:
    story = Scenario()
    for worker in "ab":
        story.join(worker, device=KERNELS, disk_bytes=10**9)
    story.running(2, steps=20)
    leave(story, "b")
    unit = decide_unit(story)
    spread(story, unit)
    decide_unit(story)
    assert job_of(story).members == ("a",)
    assert released(story, "b") == ["it left in good order: its owner stops it"]


def test_a_worker_that_comes_while_one_waits_to_leave_takes_its_share() -> None:
    story = place(units=8)
    story.leave("d")
    leave(story, "b")
    unit = decide_unit(story)
    story.join("e", device=KERNELS, disk_bytes=10**9)
    spread(story, unit)
    decide_unit(story)
    assert job_of(story).members == ("a", "e", "c")


def test_a_worker_that_leaves_at_once_costs_what_a_lost_one_does() -> None:
    story = place()
    leave(story, "b", within=0)
    assert released(story, "b") == ["it left with its share of job-1, which no worker took"]
    assert (job_of(story).replayers, job_of(story).attempt) == (("d",), 2)


def test_a_recent_version_serves_as_a_fresh_one() -> None:
    story = place(units=3)
    leave(story, "b")
    assert words(story, "b") == "for the end of a step of job-1"
    decide_unit(story)
    assert job_of(story).replayers == ("d",) and len(loads(story)[0].history) == 2


def test_two_that_leave_at_once_go_one_after_the_other() -> None:
    story = place(units=8)
    story.join("e", device=KERNELS, disk_bytes=10**9)
    leave(story, "b")
    leave(story, "c")
    hand_over(story, "b")
    load_all(story)
    decide_unit(story)
    assert job_of(story).members == ("a", "d", "e") and not released(story, "b")
    load_all(story)
    spread(story, decide_unit(story))
    assert released(story, "c") and not rollbacks(story) and is_whole(story)


def test_one_that_would_take_over_but_leaves_itself_does_not() -> None:
    story = place()
    leave(story, "d")
    assert words(story, "d") == "until its copies of job-1's state lie with two others"  # it stood by
    spread(story, decide_unit(story))
    assert released(story, "d")
    leave(story, "b")
    spread(story, decide_unit(story))
    decide_unit(story)
    assert job_of(story).members == ("a", "c")


def test_a_broker_that_is_restarted_goes_on_with_it() -> None:
    story = place(units=6)
    held = {name: story.state.workers[name].held for name in "abcd"}
    leave(story, "b")
    story.restart()
    job = job_of(story)
    for name in "abcd":
        standing = None if name == "d" else msgspec_standing(story)
        story.join(name, device=KERNELS, disk_bytes=10**9, held=held[name], standing=standing)
    assert story.state.workers["b"].leaving and job_of(story).members == job.members
    story.say(return_of(story))
    hand_over(story, "b")


def msgspec_standing(story: Scenario) -> object:
    from farflung.protocol.registration import Standing

    return Standing("job-1", job_of(story).attempt, next_unit(story), "running")


def return_of(story: Scenario) -> object:
    from farflung.protocol.messages import Return

    return Return("job-1", job_of(story).attempt, next_unit(story))


def test_a_worker_that_was_lost_in_between_and_returns_still_leaves() -> None:
    story = place()
    leave(story, "b")
    story.leave("b")
    assert job_of(story).replayers == ("d",)
    story.join("b", device=KERNELS, disk_bytes=10**9)
    assert released(story, "b")


def test_one_that_was_started_anew_stays() -> None:
    story = place()
    leave(story, "b")
    story.leave("b")
    story.join("b", boot="boot-2", device=KERNELS, disk_bytes=10**9)
    assert story.state.workers["b"].idle and not released(story, "b")


def test_a_worker_whose_release_was_lost_on_its_way_hears_it_when_it_returns() -> None:
    story = Scenario("a", "b")
    leave(story, "b")
    story.restart()
    before = len(story.commands)
    story.join("b")
    (answer,) = [one.message for one in story.commands[before:] if hasattr(one, "message")]
    assert answer == Released("it left in good order: its owner stops it")
    assert not story.state.workers["b"].connected
    story.join("b", boot="boot-2")
    assert story.state.workers["b"].idle


def test_a_worker_says_again_that_it_leaves() -> None:
    story = Scenario("a")
    story.restart()
    register = events.WorkerRegisters
    outcome = story.join("a", leaving_seconds=7)
    assert released(story, "a") and register and outcome


def test_a_job_that_is_planned_is_planned_without_it() -> None:
    story = Scenario("a", "b", "c")
    story.submit(2)
    leave(story, "b")
    job = job_of(story)
    assert (job.state, job.attempt, job.members) == ("planning", 2, ("a", "c"))
    assert released(story, "b")


def test_a_job_that_loads_is_planned_anew_if_others_are_there() -> None:
    story = Scenario("a", "b", "c")
    story.submit(2)
    story.planned()
    leave(story, "b")
    assert (job_of(story).state, job_of(story).members) == ("planning", ("a", "c"))
    assert released(story, "b") and not job_of(story).recovery.failed
    alone = Scenario("a", "b")
    alone.submit(2)
    alone.planned()
    leave(alone, "b")
    assert job_of(alone).state == "loading" and not released(alone, "b")


def test_a_job_that_sends_its_weights_is_awaited() -> None:
    story = place(units=3, steps=3)
    assert job_of(story).state == "collecting"
    leave(story, "b")
    assert words(story, "b") == "until job-1 has sent its weights"
    story.collected()
    assert released(story, "b")


def test_a_replay_is_awaited() -> None:
    story = place(units=6)
    story.join("e", device=KERNELS, disk_bytes=10**9)
    story.leave("c")
    assert job_of(story).replayers == ("d",)
    leave(story, "b")
    assert words(story, "b") == "until job-1 runs"
    load_all(story)
    hand_over(story, "b")
    assert job_of(story).members == ("a", "e", "d")


def only_worker(**changes: object) -> Scenario:
    """Worker a alone has run two steps of job-1, which saves a checkpoint at its end."""
    story = Scenario("a")
    story.running(1, **{"steps": 20, "copies": 0, "checkpoint_end": True, "saves": True, **changes})
    decide_unit(story)
    decide_unit(story)
    return story


def in_order(story: Scenario, worker: str) -> bool:
    (answer,) = [one for one in sent(story.commands, worker) if isinstance(one, Released)]
    assert story.state.workers[worker].in_order == answer.in_order
    return answer.in_order


def decided(story: Scenario) -> list[int]:
    return [fact.unit for fact in story.facts if isinstance(fact, facts.UnitDecided)]


KEEPS_BEST = {
    "copies": 1,
    "monitors": (Monitor(keeps=True),),
    "validate_every": 5,
    "validation_microbatches": 1,
}


@pytest.mark.parametrize("changes", [{}, KEEPS_BEST])
def test_the_state_of_a_job_on_one_worker_comes_to_its_submitter_before_that_leaves(
    changes: dict[str, object],
) -> None:
    story = only_worker(**changes)
    leave(story, "a")
    assert words(story, "a") == "until the state of job-1 has come to its submitter"
    unit = decide_unit(story)
    assert [one for one in sent(story.commands, "a") if isinstance(one, Decide)][-1].keep
    story.all_ready(unit + 1)
    assert decided(story) == list(range(unit + 1)) and not released(story, "a")  # it waits for the copy
    story.say(Kept("job-1", 1, unit))
    assert in_order(story, "a") and is_whole(story)
    (back,) = rollbacks(story)
    assert (back.unit, back.in_order, job_of(story).state) == (unit + 1, True, "queued")
    story.join("b")
    story.planned()
    story.loaded("b", attempt=job_of(story).attempt)
    while job_of(story).state == "running":
        decide_unit(story)
        if (under_way := job_of(story).copies.under_way) is not None:
            story.say(Kept("job-1", job_of(story).attempt, under_way))
    assert decided(story) == list(range(decided(story)[-1] + 1))  # none runs again
    assert job_of(story).state == "collecting"


def test_the_wish_of_the_only_worker_outlives_a_restart_of_the_broker() -> None:
    story = only_worker()
    leave(story, "a")
    unit = decide_unit(story)
    story.restart()
    story.join("a", standing=msgspec_standing(story))
    story.say(return_of(story))
    story.all_ready(unit + 1)
    assert decided(story)[-1] == unit
    story.say(Kept("job-1", 1, unit))
    assert in_order(story, "a") and [one.unit for one in rollbacks(story)] == [unit + 1]


def test_a_submitter_that_has_the_newest_state_already_is_not_sent_it_again() -> None:
    story = only_worker(copies=1, checkpoint_every=1)
    story.say(Kept("job-1", 1, 0))
    story.say(Kept("job-1", 1, decide_unit(story)))
    leave(story, "a")
    assert in_order(story, "a") and [one.unit for one in rollbacks(story)] == [3]


def test_a_copy_that_the_submitter_cannot_save_is_sent_three_times_and_the_job_goes_on_meanwhile() -> None:
    story = only_worker()
    leave(story, "a")
    for _ in range(MOST_REFUSED):
        unit = decide_unit(story)
        story.all_ready(unit + 1)
        assert decided(story)[-1] == unit
        story.say(Kept("job-1", 1, unit, stored=False))
        assert decided(story)[-1] == unit + 1  # it was held up no longer
    assert words(story, "a") == "for a worker that can take its share of job-1"
    decide_unit(story)
    assert job_of(story).copies.under_way is None
    story.tick(600)
    assert not in_order(story, "a") and rollbacks(story)[-1].unit == 0


@pytest.mark.parametrize("lack", ["no checkpoints", "no memory", "no submitter"])
def test_the_only_worker_of_a_job_whose_state_cannot_come_home_stays_until_its_deadline(lack: str) -> None:
    story = only_worker(**{"saves": False, **KEEPS_BEST} if lack == "no checkpoints" else {})
    if lack == "no memory":
        story.take(facts.WorkerLoaded("job-1", "a", "with room for a copy it needs more"))
    if lack == "no submitter":
        story.feed(events.SubmitterLeaves(story.now, "job-1", "gone"))
    leave(story, "a", within=100)
    if lack != "no submitter":
        decide_unit(story)
    assert job_of(story).copies.under_way is None and not job_of(story).copies.due
    assert not released(story, "a")
    story.tick(100)
    assert not in_order(story, "a")


def test_one_that_holds_copies_for_others_waits_until_they_lie_elsewhere() -> None:
    story = place()
    unit = decide_unit(story)
    holder = job_of(story).holders["a"]
    leave(story, holder)
    assert not released(story, holder) and unit == 4


def test_one_that_alone_has_copies_of_a_job_that_waits_in_the_queue_stays_until_another_has_them() -> None:
    story = test_restoring.place()
    job = job_of(story)
    assert job.versions.stable is not None
    held = story.state.workers["b"].held
    holder = job.versions.stable.holders[shares_of(job.plan)["b"]]
    story.leave("b")
    assert job_of(story).state == "queued"
    leave(story, holder)
    assert words(story, holder) == "until another worker has the copies of job-1's state that it alone has"
    story.tick(30)
    assert not released(story, holder)
    story.join("b", boot="boot-2", disk_bytes=10**9, held=held)
    assert in_order(story, holder) and job_of(story).state != "done"
    story.tick(60)
    job = job_of(story)
    assert (job.state, job.recuts, job.members) == ("planning", True, ("a", "b"))  # from their copies
    assert is_whole(story)


def test_one_that_alone_has_copies_of_a_queued_job_says_at_its_deadline_that_it_takes_them_along() -> None:
    story = test_restoring.place()
    job = job_of(story)
    assert job.versions.stable is not None
    holder = job.versions.stable.holders[shares_of(job.plan)["b"]]
    story.leave("b")
    leave(story, holder, within=30)
    story.tick(30)
    assert not in_order(story, holder)
    (reason,) = released(story, holder)
    assert reason == "its copies of job-1's state did not come to two others within 30 s"


def test_a_worker_of_other_kernels_takes_the_share_with_all_going_back_to_the_fresh_version() -> None:
    story = place()
    story.leave("d")
    story.join("d", device=msgspec.structs.replace(DEVICE, kernels=""), disk_bytes=10**9)
    leave(story, "b")
    unit = decide_unit(story)
    spread(story, unit)
    decide_unit(story)
    assert [message.unit for message in rollbacks(story)] == [unit + 1]
    assert (job_of(story).state, job_of(story).members) == ("loading", ("a", "d", "c"))


def test_an_operator_hears_what_a_worker_waits_for() -> None:
    story = place(units=8)
    assert answers_to(leave(story, "b", operator="olga")) == [Draining("b", "for copies of job-1's state")]
    (denied,) = answers_to(leave(story, "x", operator="olga"))
    assert isinstance(denied, Denied) and denied.reason.startswith("no worker x has joined")
    story.leave("d")
    (denied,) = answers_to(leave(story, "d", operator="olga"))
    assert denied == Denied("worker d is not connected: connection reset")


def test_asked_again_a_deadline_only_comes_closer() -> None:
    story = place()
    leave(story, "b", within=100)
    first = story.state.workers["b"].leaving
    leave(story, "b", within=500, operator="olga")
    assert story.state.workers["b"].leaving == first and first is not None
    leave(story, "b", within=10)
    assert story.state.workers["b"].leaving == replace(first, deadline=story.now - 1 + 10)


@pytest.mark.parametrize("trouble", ["the disk is full"])
def test_a_version_that_fails_is_not_awaited(trouble: str) -> None:
    story = place(units=6)
    leave(story, "b")
    unit = decide_unit(story)
    story.copied("a", unit, 0, trouble=trouble)
    decide_unit(story)
    assert job_of(story).replayers == ("d",) and len(loads(story)[0].history) == unit


def alone(units: int) -> Scenario:
    """As `place`, but no idle worker is there: the job can go on without b only by going back."""
    story = place(units=units, steps=300)
    story.leave("d")  # which stood by, so the next unit is copied at once
    spread(story, decide_unit(story))
    return story


def steps_lost(story: Scenario) -> int:
    (back,) = rollbacks(story)
    decided = [fact.unit for fact in story.facts if isinstance(fact, facts.UnitDecided)]
    return decided[-1] + 1 - back.unit


def test_a_version_decided_before_a_worker_asks_to_leave_serves_no_rollback() -> None:
    story = alone(units=1)
    under_way = decide_unit(story)
    while job_of(story).versions.under_way is None:
        under_way = decide_unit(story)
    for _ in range(40):
        decide_unit(story)
    leave(story, "b")
    spread(story, under_way)
    stable = job_of(story).versions.stable
    assert stable is not None and stable.name.unit == under_way
    assert words(story, "b") == "for copies of job-1's state"
    unit = decide_unit(story)
    assert not rollbacks(story) and job_of(story).versions.under_way is not None
    spread(story, unit)
    assert words(story, "b") == "for the end of a step of job-1"
    decide_unit(story)
    assert steps_lost(story) == 1 and is_whole(story)


def test_a_failed_version_is_tried_again_soon_and_the_job_does_not_go_back_further() -> None:
    story = alone(units=8)
    leave(story, "b")
    story.copied("a", decide_unit(story), 0, trouble="the disk is full")
    failed_at = story.now
    assert words(story, "b") == "for copies of job-1's state (a: the disk is full)"
    unit = decide_unit(story)
    while job_of(story).versions.under_way is None:
        assert not rollbacks(story) and story.now < failed_at + 20
        unit = decide_unit(story)
    spread(story, unit)
    decide_unit(story)
    assert steps_lost(story) == 1 and is_whole(story)


def test_at_its_deadline_a_worker_leaves_although_no_version_could_be_made() -> None:
    story = alone(units=8)
    leave(story, "b", within=120)
    story.copied("a", decide_unit(story), 0, trouble="the disk is full")
    decide_unit(story)
    assert not rollbacks(story)
    story.tick(120)
    assert released(story, "b") and [message.unit for message in rollbacks(story)] == [9]

"""A job goes on from a version on workers' disks on another plan."""

from __future__ import annotations

from tests.broker.core.test_protection import is_copied, job_of, words
from tests.broker.core.test_restoring import FIRST, place, tick, with_blobs
from tests.broker.scenario import RunPlanner, Scenario, loads, plan_over, sent, told

from farflung.broker.core import events, facts
from farflung.broker.core.records import LOADING, PLANNING, QUEUED, RUNNING
from farflung.broker.core.state import Outcome, durable, replay
from farflung.broker.planning.messages import PlanResult
from farflung.protocol.copies import CopyLost
from farflung.protocol.messages import Planned, Refused, Retain, RolledBack, Stop
from farflung.protocol.worker import SegmentProgram

WAIT = 60  # seconds that a job waits at least for a lost worker, and is told of by `tick`


def smaller() -> tuple[Scenario, Outcome]:
    """Workers c and a load job-1 on a plan without b, which is lost; c had its share, too.

    The version has weights 0 and 3 in share 0 (on a's disk), 1 in share 1 (c's) and 2 in share 2 (both).
    """
    story = place()
    story.leave("b")
    tick(story, WAIT)
    assert (job_of(story).state, job_of(story).members) == (PLANNING, ("a", "c"))
    return story, planned(story, "c", "a")


def planned(story: Scenario, *workers: str) -> Outcome:
    """There is a plan with a segment for each of these workers and a last one for the first."""
    plan = plan_over(list(workers))
    names = [f"weight-{part.segment}" for part in plan.placements]
    programs = [SegmentProgram(number, b"program", {name: 4}) for number, name in enumerate(names)]
    result = PlanResult(plan, programs, [[name] for name in names], None)
    return story.feed(events.PlanMade(story.now, "job-1", job_of(story).attempt, result))


def test_after_a_while_the_job_is_planned_on_fewer_workers_and_reads_its_state_by_name() -> None:
    story = place()
    story.leave("b")
    tick(story, WAIT // 2)
    assert job_of(story).state == QUEUED
    tick(story, WAIT // 2)
    job = job_of(story)
    assert (job.state, job.step, job.attempt, job.members) == (PLANNING, 1, 2, ("a", "c"))
    (asked,) = [one for one in story.commands if isinstance(one, RunPlanner) and one.attempt == 2]
    assert (asked.workers, asked.count) == (("a", "c"), 2)
    outcome = planned(story, "c", "a")
    assert (job_of(story).state, job_of(story).members) == (LOADING, ("c", "a"))
    found = loads(with_blobs(outcome, story))
    sources = {"c": {0: "a", 2: "c"}, "a": {1: "c"}}
    for load in found.values():
        assert (load.version, load.unit, load.sources, load.donors) == (FIRST, 1, sources, {})
        assert set(load.gifts) == {("a", "c", 0), ("c", "a", 1)}
    backs = [one for one in told(story.commands) if isinstance(one, RolledBack)]
    assert [(one.unit, one.held) for one in backs] == [(1, True)]
    (said,) = [one for one in told(outcome.commands) if isinstance(one, Planned)]
    assert (said.unit, said.keeps, said.recut) == (1, True, True)


def test_the_old_copies_stay_until_there_are_new_ones() -> None:
    story, _ = smaller()
    for worker in "ac":
        story.loaded(worker, attempt=2)
    assert job_of(story).state == RUNNING
    assert words(story) == "protected up to step 1"  # each has what the other one gave it
    assert is_copied(story, 1)
    job = job_of(story)
    for share, owner in enumerate("ca"):
        story.copied(owner, 1, share)
        outcome = story.copied(job.holders[owner], 1, share)
    stable = job_of(story).versions.stable
    assert stable is not None and (stable.next_unit, stable.names, stable.on) == (2, {}, ())
    assert sent(outcome.commands, "a") == [Retain("job-1", [stable.name], stable.name)]
    assert words(story) == "protected up to step 2"


def test_a_worker_that_is_back_in_time_takes_its_place_again() -> None:
    story = place()
    held = list(story.state.workers["b"].held)
    story.leave("b")
    tick(story, WAIT)
    story.feed(events.PlanFailed(story.now, "job-1", 2, "the model is too large for 2 workers"))
    assert (job_of(story).state, job_of(story).recovery.unfit) == (QUEUED, ("a", "c"))
    assert "too large for 2 workers; waiting for b, or another one like it" in job_of(story).words
    tick(story, WAIT)
    assert job_of(story).state == QUEUED
    story.join("b", boot="boot-2", held=held, disk_bytes=10**9)
    job = job_of(story)
    assert (job.state, job.members, job.donors, job.sources) == (LOADING, ("a", "b", "c"), {}, {})


def test_another_worker_makes_it_possible_to_plan_again() -> None:
    story = place()
    story.leave("b")
    tick(story, WAIT)
    story.feed(events.PlanFailed(story.now, "job-1", 2, "the model is too large for 2 workers"))
    story.join("d")  # it holds no copies, so it takes no place as it is
    assert (job_of(story).state, job_of(story).members) == (PLANNING, ("a", "c", "d"))
    planned(story, "c", "a", "d")  # with a segment 3 on c
    assert job_of(story).sources == {"c": {0: "a"}, "a": {1: "c"}, "d": {2: "a"}}


def test_a_worker_without_the_models_ops_is_left_out() -> None:
    story = place()
    story.join("d")
    story.leave("b")
    tick(story, WAIT)
    story.feed(events.PlanFailed(story.now, "job-1", 2, "the model is too large for 2 workers"))
    assert job_of(story).members == ("a", "c", "d")
    story.feed(events.PlanLacks(story.now, "job-1", 3, {"d": "it lacks aten.erf"}))
    assert (job_of(story).state, job_of(story).attempt, job_of(story).members) == (PLANNING, 4, ("a", "c"))


def scattered() -> Scenario:
    """Worker b of job-1 is lost; no plan fits a and c. Now it is planned on a, c, d and e."""
    story = place()
    story.join("d")
    story.join("e")
    story.leave("b")
    tick(story, WAIT)
    story.feed(events.PlanFailed(story.now, "job-1", 2, "the model is too large for 2 workers"))
    assert (job_of(story).state, job_of(story).members) == (PLANNING, ("a", "c", "d", "e"))
    return story


def test_a_job_whose_plans_leave_out_copies_begins_again_once_waiting_is_not_worth_it() -> None:
    story = scattered()
    speed = job_of(story).pace.samples_per_second
    assert speed
    planned(story, "a", "d", "e")  # without c, which alone has share 1
    assert (job_of(story).state, job_of(story).step) == (QUEUED, 1)
    assert job_of(story).pace.samples_per_second == speed
    tick(story, WAIT / 2)
    assert job_of(story).state == QUEUED
    tick(story, WAIT)
    assert (job_of(story).state, job_of(story).step, job_of(story).plan) == (PLANNING, 0, None)
    decisions = [fact for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(decisions) == durable(story.state)


def test_a_job_that_fits_on_no_workers_keeps_its_version() -> None:
    story = scattered()
    story.feed(events.PlanFailed(story.now, "job-1", 3, "the model is too large for 3 workers"))
    tick(story, 100 * WAIT)
    assert (job_of(story).state, job_of(story).step, job_of(story).recuts) == (QUEUED, 1, True)
    assert job_of(story).versions.stable is not None


def test_a_second_loss_before_there_are_new_copies_leads_back_to_the_old_ones() -> None:
    story, _ = smaller()
    for worker in "ac":
        story.loaded(worker, attempt=2)
    held = list(story.state.workers["a"].held)
    story.leave("a")
    assert (job_of(story).state, job_of(story).step) == (QUEUED, 1)
    assert "waiting for a, or another one like it, to go on at step 2" in job_of(story).words
    outcome = story.join("a", boot="boot-2", held=held, disk_bytes=10**9)
    job = job_of(story)
    assert (job.state, job.members) == (LOADING, ("c", "a"))
    assert job.sources == {"c": {0: "c", 2: "c"}, "a": {1: "a"}}
    assert all(load.version == FIRST for load in loads(with_blobs(outcome, story)).values())


def test_a_lost_place_of_the_new_plan_is_taken_by_one_like_it() -> None:
    story, _ = smaller()
    for worker in "ac":
        story.loaded(worker, attempt=2)
    story.join("d", disk_bytes=10**9)
    story.leave("a")
    assert job_of(story).members == ("c", "d")
    assert job_of(story).sources == {"c": {0: "c", 2: "c"}, "d": {1: "c"}}


def test_a_share_on_no_disk_that_is_there_is_awaited() -> None:
    story = place()
    story.leave("b")
    story.leave("c")
    tick(story, WAIT)
    assert job_of(story).state == QUEUED
    assert "waiting for b, c, which alone have all of its state, to go on at step 2" in job_of(story).words


def test_a_copy_that_turns_out_to_be_damaged_is_read_from_another_worker() -> None:
    story, _ = smaller()
    lost = CopyLost("job-1", 2, FIRST, 2, "the copy is damaged: its SHA-256 differs")
    story.feed(events.WorkerMessage(story.now, "c", lost))
    assert (job_of(story).state, job_of(story).attempt) == (LOADING, 3)
    assert job_of(story).sources == {"c": {0: "a", 2: "a"}, "a": {1: "c"}}
    lost = CopyLost("job-1", 3, FIRST, 1, "the copy is damaged: its SHA-256 differs")
    story.feed(events.WorkerMessage(story.now, "c", lost))
    assert job_of(story).state == QUEUED  # b may have it


def test_a_member_that_refuses_for_another_reason_is_awaited_like_a_lost_one() -> None:
    story, _ = smaller()
    story.feed(events.WorkerMessage(story.now, "c", Refused("job-1", 2, "it needs more memory")))
    job = job_of(story)
    assert (job.state, job.step, list(job.unable)) == (QUEUED, 1, ["c"])
    assert job.versions.stable is not None and job.versions.stable.name == FIRST


def test_who_refuses_the_copies_makes_the_job_begin_again() -> None:
    story, _ = smaller()
    refused = Refused("job-1", 2, "the copies lack 'weight-1'", lacks=True)
    story.feed(events.WorkerMessage(story.now, "c", refused))
    assert (job_of(story).step, job_of(story).plan, job_of(story).recuts) == (0, None, False)


def test_a_job_that_ends_while_it_is_planned_anew_leaves_no_copies() -> None:
    story = place()
    story.leave("b")
    tick(story, WAIT)
    outcome = story.cancel(collect=False)
    assert sent(outcome.commands, "a") == [Retain("job-1", [])]
    assert not any(isinstance(one, Stop) for one in sent(outcome.commands, "c"))
    assert not any(worker.held for worker in story.state.workers.values())


def test_a_broker_that_is_restarted_meanwhile_goes_on_from_the_same_copies() -> None:
    story = place()
    disks = {name: list(story.state.workers[name].held) for name in "ac"}
    story.leave("b")
    tick(story, WAIT)
    story.restart()
    story.tick(50)
    for name in "ac":
        story.join(name, boot="boot-2", held=disks[name], disk_bytes=10**9)
    assert (job_of(story).state, job_of(story).plan is not None) == (QUEUED, True)  # its submitter is away
    assert job_of(story).versions.stable is not None


def test_what_was_decided_is_in_the_log() -> None:
    story, _ = smaller()
    for worker in "ac":
        story.loaded(worker, attempt=2)
    decisions = [fact for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(decisions) == durable(story.state)

"""Workers that make attempts fail: jobs go on without them, and suspect them once they can."""

from __future__ import annotations

import pytest
from tests.broker.core import test_restoring
from tests.broker.core.test_protection import job_of
from tests.broker.core.test_replaying import KERNELS, load_all, place
from tests.broker.core.test_standbys import spread_all
from tests.broker.core.trusting.test_removing import allow, answer, is_whole
from tests.broker.scenario import Scenario, told

from farflung.broker.core import events
from farflung.broker.core.events import Reply
from farflung.broker.core.fleet.membership import membership
from farflung.broker.core.state import Outcome
from farflung.protocol.copies import CopyLost
from farflung.protocol.members import MemberChanged
from farflung.protocol.messages import Accepted, Broken, Ended, Refused, RolledBack, Stalled


def refuse(story: Scenario, worker: str, reason: str = "no", job: str = "job-1") -> Outcome:
    message = Refused(job, story.state.jobs[job].attempt, reason)
    return story.feed(events.WorkerMessage(story.now, worker, message))


def fail(story: Scenario, worker: str, reason: str = "out of memory", sender: str | None = None) -> Outcome:
    message = Broken("job-1", job_of(story).attempt, reason, sender=sender)
    return story.feed(events.WorkerMessage(story.now, worker, message))


def begin(story: Scenario, job: str = "job-1") -> None:
    """Plan a job, and let all its members load."""
    story.planned(job)
    for worker in story.state.jobs[job].members:
        story.loaded(worker, job, story.state.jobs[job].attempt)


def finish(story: Scenario, job: str) -> None:
    """Run a job to its end."""
    for unit in range(story.state.jobs[job].training.steps):
        for worker in story.state.jobs[job].members:
            story.ready(worker, unit, job)
    story.collected(job, story.state.jobs[job].attempt)


def why_ended(story: Scenario, job: str = "job-1") -> str:
    (ended,) = [one for one in told(story.commands, job) if isinstance(one, Ended)]
    return f"{ended.state}: {ended.reason}"


def held_against(story: Scenario, worker: str) -> str:
    return membership(story.state, story.state.workers[worker], None, 3.0).reason


def test_one_worker_that_refuses_every_load_fails_no_job_and_soon_gets_none() -> None:
    """It failed 5 of 5 jobs when each refusal ended its job."""
    story = Scenario("a", "b", "c")
    refused = 0
    for number in range(1, 6):
        job = f"job-{number}"
        story.submit(2)
        assert story.state.jobs[job].state == "planning"
        story.planned(job)
        while "a" in story.state.jobs[job].members:
            refused += 1
            refuse(story, "a", "I would rather not", job)
            story.planned(job)
        for worker in story.state.jobs[job].members:
            story.loaded(worker, job, story.state.jobs[job].attempt)
        finish(story, job)
        assert why_ended(story, job) == "done: "
        assert is_whole(story)
    # The first job learned of it. All others had two that are not suspected.
    assert refused == 1 and story.state.suspicions["a"].count == 1
    assert held_against(story, "a") == (
        "it gets jobs only if others are too few: it made an attempt of a job fail that others got through, "
        "once (the last one of job-1: I would rather not)"
    )


def needing_all(jobs: int) -> Scenario:
    """Each of some jobs is for two workers: b, and a, which refuses, until c comes."""
    story = Scenario("a", "b")
    for number in range(1, jobs + 1):
        job = f"job-{number}"
        story.submit(2)
        if story.state.jobs[job].state == "queued":
            break
        story.planned(job)
        story.join("c")
        refuse(story, "a", "no", job)
        begin(story, job)
        finish(story, job)
        story.leave("c", "worker c is shutting down")
    return story


def test_after_three_suspicions_a_worker_gets_no_jobs_until_an_operator_allows_it() -> None:
    story = needing_all(4)
    assert story.state.suspicions["a"].count == 3 and story.state.backup_pool() == ["b"]
    said = [one.state for one in told(story.commands, "job-4") if isinstance(one, Accepted)][-1]
    assert "have 1, the job needs 2; a suspended: see `farflung member list`" in said
    assert held_against(story, "a").startswith("it gets no jobs until `farflung member allow a`: it made")
    story.leave("a")
    story.join("a", "boot-2")  # that helps nobody
    assert story.state.backup_pool() == ["b"] and story.state.jobs["job-4"].state == "queued"
    outcome = allow(story, "a")
    found = answer(outcome)
    assert isinstance(found, MemberChanged) and "this is forgotten: it made an attempt" in found.words
    assert story.state.jobs["job-4"].state == "planning" and not story.state.suspicions
    assert is_whole(story)


def test_the_number_of_suspicions_is_a_setting_of_each_start() -> None:
    story = needing_all(2)
    assert story.state.suspicions["a"].count == 2 and not story.state.is_suspended("a")
    story.feed(events.Restarted(story.now, most_suspicions=2))
    assert story.state.is_suspended("a") and is_whole(story)
    story.feed(events.Restarted(story.now))
    assert not story.state.is_suspended("a")


def test_a_suspected_worker_is_used_when_the_others_are_too_few_or_have_no_plan() -> None:
    story = needing_all(1)
    story.submit(2)  # a and b are there
    assert story.state.jobs["job-2"].members == ("a", "b")
    begin(story, "job-2")
    finish(story, "job-2")
    story.submit(0)
    assert story.state.jobs["job-3"].members == ("b",)
    story.feed(events.PlanFailed(story.now, "job-3", 1, "the model does not fit into memory"))
    assert story.state.jobs["job-3"].members == ("a", "b") and is_whole(story)


def test_a_refusal_that_others_repeat_is_the_fault_of_the_job() -> None:
    story = Scenario("a", "b", "c", "d")
    story.submit(2)
    story.planned()
    refuse(story, "a", "op aten.evil is not in the opset")
    story.planned()
    refuse(story, "b", "op aten.evil is not in the opset")
    assert why_ended(story).startswith(
        "failed: worker b refused the job while the job was loading: op aten.evil"
    )
    assert why_ended(story).endswith("; so did a before")
    assert not story.state.suspicions and is_whole(story)


def test_a_job_ends_once_a_third_worker_makes_it_fail() -> None:
    story = Scenario(*"abcde")
    story.submit(1)
    for worker in "abc":
        story.planned()
        assert job_of(story).members == (worker,)
        refuse(story, worker, f"{worker} will not")
    assert why_ended(story).endswith("c will not; a, b made it fail before") and not story.state.suspicions


def test_without_others_a_refusal_ends_the_job_with_its_reason() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.planned()
    refuse(story, "a", "it needs 9 GB, and its owner gives 1 GB")
    assert "it needs 9 GB" in why_ended(story) and not story.state.suspicions


def test_what_others_cannot_be_planned_on_ends_a_new_job_with_both_reasons() -> None:
    story = Scenario("a", "b")
    story.submit(1)
    story.planned()
    refuse(story, "a", "it needs 9 GB")
    assert job_of(story).state == "planning" and job_of(story).members == ("b",)
    story.feed(events.PlanFailed(story.now, "job-1", 2, "the model does not fit into memory"))
    assert "it needs 9 GB; and without it the model does not fit" in why_ended(story)


def test_a_segment_that_fails_is_run_by_another_worker_which_shows_who_was_at_fault() -> None:
    story = Scenario("a", "b", "c")
    story.running(2)
    story.all_ready(0)
    outcome = fail(story, "a")
    (back,) = [one for one in told(outcome.commands) if isinstance(one, RolledBack)]
    assert "worker a could not go on at step 2: out of memory" in back.reason
    begin(story)
    assert job_of(story).members == ("b", "c")
    story.all_ready(0)
    assert not story.state.suspicions  # it failed later
    story.all_ready(1)
    assert story.state.suspicions["a"].reason == "out of memory" and not job_of(story).blamed
    assert is_whole(story)


def test_data_that_fail_everywhere_end_the_job_and_no_worker_is_suspected() -> None:
    story = Scenario("a", "b", "c")
    story.running(1)
    story.all_ready(0)
    fail(story, "a", "index 9 is out of bounds")
    begin(story)
    story.all_ready(0)
    fail(story, job_of(story).members[0], "index 9 is out of bounds")
    assert "index 9 is out of bounds; so did a before" in why_ended(story)
    assert not story.state.suspicions and is_whole(story)


def test_a_worker_that_fails_on_what_the_submitter_sent_is_not_suspected() -> None:
    """Data that are read anew may be good ones the second time: an honest worker was suspected then."""
    story = Scenario("a", "b", "c")
    story.running(2)
    fail(story, "a", "index 9 is out of bounds", job_of(story).submitter)
    begin(story)
    assert job_of(story).members == ("b", "c") and is_whole(story)
    story.all_ready(0)
    assert job_of(story).next_unit == 1 and not story.state.suspicions and is_whole(story)


def test_a_parcel_that_cannot_be_decoded_is_blamed_on_the_worker_that_sent_it() -> None:
    """Its receiver was suspected."""
    story = Scenario("a", "b", "c")
    story.running(2)
    fail(story, "b", "value 3 of microbatch 0 from a cannot be decoded", "a")
    assert set(job_of(story).blamed) == {"a"}
    begin(story)
    assert job_of(story).members == ("b", "c")
    story.all_ready(0)
    assert set(story.state.suspicions) == {"a"} and is_whole(story)


def test_a_sender_that_has_no_part_in_the_job_is_not_blamed() -> None:
    story = Scenario("a", "b", "c")
    story.running(2)
    fail(story, "b", "it lies", "c")
    assert set(job_of(story).blamed) == {"b"}


def test_a_job_with_copies_goes_on_from_them_without_the_worker_that_failed() -> None:
    story = place()
    fail(story, "b")
    job = job_of(story)
    assert set(job.blamed) == {"b"} and "b" not in job.members and job.state in ("loading", "planning")
    if job.state == "planning":
        story.planned()
    load_all(story)
    assert job_of(story).state == "running" and is_whole(story)
    first = job_of(story).next_unit
    for unit in range(first, 5):
        story.all_ready(unit)
    assert set(story.state.suspicions) == {"b"}


def test_a_worker_whose_blame_has_become_a_suspicion_stands_by_at_once() -> None:
    """A blamed worker has no part in the job; a suspected one may hold copies of its state."""
    story = place()
    fail(story, "b")
    load_all(story)
    unit = job_of(story).next_unit
    story.all_ready(unit)
    spread_all(story, unit)  # so that no version is under way, which would put off who stands by
    while "b" in job_of(story).blamed:
        assert "b" not in job_of(story).standbys.values()
        story.all_ready(job_of(story).next_unit)
    assert "b" in job_of(story).standbys.values()


def test_state_that_the_failed_worker_alone_has_is_given_up() -> None:
    story = Scenario()
    for worker in "ab":
        story.join(worker, device=KERNELS, disk_bytes=10**9)
    story.join("c", device=KERNELS)  # without a disk
    story.running(2, steps=20)
    fail(story, "a")
    assert job_of(story).state in ("queued", "planning") and is_whole(story)
    assert job_of(story).state == "planning" and job_of(story).members == ("b", "c")


def test_state_is_given_up_once_only_the_failed_worker_has_it() -> None:
    """The job waited for it, which it would not have used, and said that no worker was missing."""
    story = test_restoring.place("d")
    survivor = next(owner for owner, holder in job_of(story).holders.items() if holder == "b")
    fail(story, "b")
    share = "abc".index(survivor)
    lost = CopyLost("job-1", job_of(story).attempt, test_restoring.FIRST, share, "the copy is damaged")
    story.feed(events.WorkerMessage(story.now, survivor, lost))
    job = job_of(story)
    assert (job.state, job.step) == ("planning", 0) and "b" not in job.members and is_whole(story)
    assert any(
        one.reason == "a part of the newest version is on b alone, which made the job fail"
        for one in told(story.commands, "job-1")
        if isinstance(one, RolledBack)
    )


@pytest.mark.parametrize("lacks", [True, False])
def test_who_refuses_to_restore_is_blamed_unless_the_copies_lack_something(lacks: bool) -> None:
    story = test_restoring.place("d")
    story.leave("b")
    assert job_of(story).members == ("a", "d", "c") and job_of(story).restores
    story.feed(events.WorkerMessage(story.now, "d", Refused("job-1", 2, "no", lacks)))
    assert set(job_of(story).blamed) == (set() if lacks else {"d"}) and is_whole(story)
    story.planned()
    load_all(story)
    story.all_ready(job_of(story).next_unit)
    assert set(story.state.suspicions) == (set() if lacks else {"d"})


def test_an_operator_can_forget_a_blame_that_is_not_settled() -> None:
    story = Scenario("a", "b", "c")
    story.submit(2)
    story.planned()
    refuse(story, "a")
    found = answer(allow(story, "a"))
    assert found == MemberChanged("a", "worker", "jobs use it again") and not job_of(story).blamed
    assert [one for one in allow(story, "a").commands if isinstance(one, Reply)]


def wait(story: Scenario, seconds: float = 10_000.0) -> None:
    story.now += seconds
    story.feed(events.Tick(story.now, 300.0, 40.0, 600.0))


def test_the_one_worker_that_keeps_all_others_waiting_is_replaced() -> None:
    """It could be in each attempt until the job ended after five of them."""
    story = Scenario("a", "b", "c")
    story.submit(2)
    story.planned()
    story.loaded("b")
    wait(story)
    assert set(job_of(story).blamed) == {"a"} and job_of(story).members == ("b", "c")
    begin(story)
    story.all_ready(0)
    assert "the job is still not loaded on a" in story.state.suspicions["a"].reason
    story.ready("c", 1)
    wait(story)
    assert set(job_of(story).blamed) == {"b"}
    assert job_of(story).members == ("a", "c")  # though a is suspected: the others are too few
    assert is_whole(story)


def test_several_that_are_late_are_not_blamed_because_some_may_wait_for_others() -> None:
    story = Scenario("a", "b", "c")
    story.submit(2)
    story.planned()
    wait(story)
    assert not job_of(story).blamed and job_of(story).state == "planning"


def stall(story: Scenario, waited: float, **seconds: int) -> Outcome:
    """The submitter says which workers get no further, so long after the job began to load."""
    story.now += waited
    return story.say(Stalled("job-1", job_of(story).attempt, seconds), patience_seconds=300.0)


def test_a_worker_that_takes_nothing_of_its_state_is_replaced_before_a_slow_line_would_be_through() -> None:
    story = Scenario("a", "b", "c")
    story.submit(2)
    story.planned()
    stall(story, 300.0, a=300, b=10)
    assert set(job_of(story).blamed) == {"a"} and job_of(story).members == ("b", "c")
    begin(story)
    story.all_ready(0)
    assert not story.state.suspicions, "who says so could have kept the state to itself"
    assert is_whole(story)


def test_one_that_has_all_and_never_says_so_is_replaced_though_the_others_have_taken_nothing_since() -> None:
    """The submitter does not know who has loaded."""
    story = Scenario("a", "b", "c")
    story.submit(2)
    story.planned()
    story.loaded("b")
    stall(story, 400.0, a=300, b=390)
    assert set(job_of(story).blamed) == {"a"}


@pytest.mark.parametrize(
    ("waited", "seconds"),
    [
        (300.0, {"b": 300}),
        (300.0, {"c": 300, "zoe": 300}),
        (300.0, {"a": 299}),
        (10.0, {"a": 300}),
    ],
    ids=["it has loaded", "they have no part", "not for long", "the job loads since a moment"],
)
def test_what_a_submitter_says_of_a_worker_counts_only_if_the_job_waits_for_it(
    waited: float, seconds: dict[str, int]
) -> None:
    story = Scenario("a", "b", "c")
    story.submit(2)
    story.planned()
    story.loaded("b")
    before = job_of(story)
    stall(story, waited, **seconds)
    assert job_of(story) == before


def test_several_that_stall_are_not_blamed_because_they_may_share_a_line() -> None:
    story = Scenario("a", "b", "c", "d")
    story.submit(2)
    story.planned()
    before = job_of(story)
    stall(story, 400.0, a=400, b=400)
    assert job_of(story) == before


def test_a_job_that_runs_is_not_asked_of_its_submitter() -> None:
    story = Scenario("a", "b", "c")
    story.submit(2)
    begin(story)
    before = job_of(story)
    stall(story, 300.0, a=300)
    assert job_of(story) == before


def test_without_others_a_job_goes_on_waiting_for_one_that_stalls() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.planned()
    before = job_of(story)
    stall(story, 300.0, a=300)
    assert job_of(story) == before

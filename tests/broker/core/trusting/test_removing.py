"""Operators remove members: jobs go on without them, and they are refused until they are allowed again."""

from __future__ import annotations

import pytest
from tests.broker.core.test_awaiting import alone
from tests.broker.core.test_protection import job_of
from tests.broker.core.test_replaying import continues, load_all, loads, place
from tests.broker.scenario import Scenario, sent, told

from farflung.broker.core import events, facts
from farflung.broker.core.events import Admit, Expel, Reject, Reply
from farflung.broker.core.fleet.membership import membership
from farflung.broker.core.snapshots import decode_snapshot, encode_snapshot
from farflung.broker.core.state import Outcome, durable, replay
from farflung.broker.core.trusting.events import AllowAsked, CancelAsked, RemovalAsked
from farflung.broker.core.trusting.records import Removal
from farflung.protocol.copies import HeldCopy, StateVersion
from farflung.protocol.members import JobCancelled, MemberAllowed, MemberChanged, MemberRemoved
from farflung.protocol.membership import MOST_REFUSAL, is_removal
from farflung.protocol.messages import (
    Accepted,
    Broken,
    Cancel,
    Collecting,
    Denied,
    Ended,
    Keep,
    Registered,
    RolledBack,
    Stop,
)
from farflung.transport.wire.frames import closing

WAITS = "job-1 goes on with others as soon as there are enough"
WHY = (
    "worker b was removed by operator olga: it lies; it may come back once an operator runs farflung member"
    " allow b"
)


def remove(
    story: Scenario, member: str, role: str = "worker", operator: str = "olga", **more: object
) -> Outcome:
    asked = RemovalAsked(story.now, member, role, operator, "it lies", **more)  # type: ignore[arg-type]
    return story.feed(asked)


def allow(story: Scenario, member: str, operator: str = "olga") -> Outcome:
    return story.feed(AllowAsked(story.now, member, operator))


def cancel(story: Scenario, role: str = "operator", by: str = "olga", at_once: bool = False) -> Outcome:
    return story.feed(CancelAsked(story.now, "job-1", role, by, "too costly", at_once))


def answer(outcome: Outcome) -> object:
    (found,) = [one.message for one in outcome.commands if isinstance(one, Reply)]
    return found


def is_whole(story: Scenario) -> bool:
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    body = encode_snapshot(story.state)
    assert body is not None
    return replay(map(facts.decode, log)) == durable(story.state) == decode_snapshot(body)


def test_a_removed_worker_is_lost_to_its_job_at_once_and_another_takes_its_share_over() -> None:
    story = place()
    outcome = remove(story, "b")
    assert Expel("b", WHY) in outcome.commands
    assert answer(outcome) == MemberChanged("b", "worker", "its share of job-1 goes to others")
    assert job_of(story).replayers == ("d",) and "b" not in job_of(story).members
    assert set(continues(story)) == {"a", "c"} and len(loads(story)) == 1
    for worker in "acd":
        assert MemberRemoved("b", "was removed by operator olga: it lies") in sent(outcome.commands, worker)
    assert not [one for one in sent(outcome.commands, "b") if isinstance(one, MemberRemoved)]
    load_all(story)
    assert job_of(story).state == "running" and is_whole(story)


def test_a_removed_worker_is_refused_whatever_it_says_until_it_is_allowed_again() -> None:
    story = Scenario("a", "b")
    remove(story, "b")
    before = story.state
    assert Reject(WHY) in story.join("b", "boot-2").commands
    for event in (
        events.WorkerMessage(story.now, "b", Broken("job-1", 1, "no")),
        events.LeaveAsked(story.now, "b", 9.0),
        events.WorkerLeaves(story.now, "b", "its session was closed"),
    ):
        story.feed(event)
    assert story.state == before and is_whole(story)
    story.submit(2)
    assert told(story.commands)[-1].state.startswith("waiting for 1 more worker")  # type: ignore[union-attr]
    outcome = allow(story, "b")
    assert answer(outcome) == MemberChanged("b", "worker", "it may connect again")
    assert MemberAllowed("b") in sent(outcome.commands, "a")
    assert any(isinstance(one, Admit) for one in story.join("b", "boot-2").commands)
    assert story.state.jobs["job-1"].state == "planning" and is_whole(story)


def test_a_broker_that_is_started_again_still_refuses() -> None:
    story = place()
    remove(story, "b")
    story.restart()
    assert Reject(WHY) in story.join("b", "boot-2").commands
    assert not story.state.workers["b"].connected


def test_workers_that_register_hear_of_recent_removals_alone() -> None:
    story = Scenario("a", "b", "c")
    remove(story, "b")
    (said,) = [one for one in sent(story.join("d").commands, "d") if isinstance(one, Registered)]
    assert said.removed == ["b"]
    story.now += 30 * 86_400
    (said,) = [one for one in sent(story.join("e").commands, "e") if isinstance(one, Registered)]
    assert said.removed == []


def test_the_disk_of_a_removed_worker_counts_no_more() -> None:
    """It alone had the state: the job does not wait for it, but begins again with what the submitter has."""
    story = alone()
    for name in "ac":  # then b has copies of its own share and of c's, and is not there alone
        story.leave(name)
    job = job_of(story)
    assert set(job.awaited) == {"a", "c"} and story.state.workers["b"].held
    remove(story, "b")
    assert not story.state.workers["b"].held and is_whole(story)
    assert job_of(story).state == "queued" and job_of(story).recuts
    for name in "ac":
        story.join(name, "boot-2", disk_bytes=10**9)
    assert job_of(story).plan is None and is_whole(story)
    story.join("e", disk_bytes=10**9)
    assert job_of(story).state == "planning" and set(job_of(story).members) == {"a", "c", "e"}


def test_a_job_awaits_a_worker_no_longer_that_is_removed_and_goes_on_from_others_copies() -> None:
    story = alone()
    story.leave("b")
    assert job_of(story).awaited == ("b",)
    outcome = remove(story, "b")
    job = job_of(story)
    assert (job.state, job.awaited, job.members) == ("planning", (), ("a", "c")) and is_whole(story)
    (planning,) = [one for one in outcome.facts if isinstance(one, facts.JobPlanning)]
    assert planning.restores  # from the copies on a and c, not from what the submitter has
    what = membership(story.state, story.state.workers["b"], None, 3.0)
    assert what.reason == "it was removed by operator olga: it lies"
    assert answer(outcome) == MemberChanged(
        "b", "worker", "job-1 goes on with others as soon as there are enough"
    )


def test_the_last_worker_of_a_running_job_is_removed_and_the_job_waits_by_name() -> None:
    story = Scenario("b")
    story.running(1)
    story.all_ready(0)
    remove(story, "b")
    assert job_of(story).state == "queued"
    (back,) = [one for one in told(story.commands) if isinstance(one, RolledBack)]
    assert "worker b was removed by operator olga: it lies, at step 2" in back.reason
    said = [one.state for one in told(story.commands) if isinstance(one, Accepted)][-1]
    assert said == job_of(story).words and said.startswith("waiting for 1 more worker")
    story.join("c")
    assert job_of(story).state == "planning"


def test_a_job_on_named_workers_says_that_one_was_removed() -> None:
    story = Scenario("a", "b")
    remove(story, "b")
    story.submit(on=["a", "b"])
    said = told(story.commands)[-1].state  # type: ignore[union-attr]
    assert "waiting for b (removed)" in said and "`farflung member allow b` lets that one back in" in said


def test_of_a_job_on_named_workers_no_others_are_promised_its_share() -> None:
    story = Scenario("a", "b", "c")
    story.running(2, on=["a", "b"])
    words = "job-1 goes on once enough of the workers that it names (--on) are there"
    assert answer(remove(story, "b")) == MemberChanged("b", "worker", words)


def test_a_standby_that_is_removed_holds_copies_no_more() -> None:
    story = place()
    assert "d" in job_of(story).standbys.values()
    remove(story, "d")
    job = job_of(story)
    assert "d" not in job.standbys.values() and job.state == "running" and job.members == ("a", "b", "c")


def test_the_jobs_of_a_removed_submitter_end_and_it_can_submit_no_other() -> None:
    story = Scenario("a", "b")
    story.running()
    outcome = remove(story, "ana", "submitter")
    words = "its submitter ana was removed by operator olga: it lies"
    assert told(outcome.commands)[-1] == Ended("job-1", "cancelled", words)
    assert {name for name in "ab" if any(isinstance(one, Stop) for one in sent(outcome.commands, name))} == {
        "a",
        "b",
    }
    assert answer(outcome) == MemberChanged("ana", "submitter", "1 job of it ended")
    back = "; it may come back once an operator runs farflung member allow ana"
    denied = Denied(f"submitter ana was removed by operator olga: it lies{back}")
    assert answer(story.submit()) == denied and list(story.state.jobs) == ["job-1"]
    assert answer(story.say(Keep("job-1", 1))) == denied
    assert is_whole(story)


def test_removed_operators_have_no_effect() -> None:
    story = Scenario("a", "b")
    story.running()
    remove(story, "otto", "operator")
    for outcome in (
        remove(story, "a", operator="otto"),
        allow(story, "otto", operator="otto"),
        cancel(story, by="otto"),
        story.feed(events.LeaveAsked(story.now, "a", 9.0, "otto")),
    ):
        denied = answer(outcome)
        assert isinstance(denied, Denied)
        assert denied.reason.startswith("operator otto was removed by operator olga: it lies; ")
    assert job_of(story).state == "running" and set(story.state.removed) == {"otto"}


def test_a_long_reason_leaves_room_for_what_lets_a_member_back_in() -> None:
    removal = Removal("b", "worker", 1.0, "olga", "it lies\n" * 1000)
    assert len(removal.refusal) == MOST_REFUSAL and "\n" not in removal.refusal
    assert removal.refusal.endswith("; it may come back once an operator runs farflung member allow b")


@pytest.mark.parametrize(
    ("member", "operator", "words"),
    [
        ("b", "olga", "b is removed already: it was removed by operator olga: it lies"),
        ("olga", "olga", "an operator cannot remove itself"),
    ],
)
def test_what_cannot_be_removed_is_denied(member: str, operator: str, words: str) -> None:
    story = Scenario("a", "b")
    remove(story, "b")
    before = story.state
    found = answer(remove(story, member, operator=operator))
    assert isinstance(found, Denied) and words in found.reason and story.state == before


def test_what_is_allowed_already_is_denied() -> None:
    found = answer(allow(Scenario("a"), "a"))
    assert isinstance(found, Denied) and "nothing is held against a" in found.reason


def test_the_operator_hears_of_a_token_that_lets_more_in() -> None:
    found = answer(remove(Scenario("a"), "a", token="0a1b2c3d", lets_in=3))
    assert isinstance(found, MemberChanged)
    assert "lets 3 more join: `farflung token revoke 0a1b2c3d`" in found.words


def test_status_says_who_removed_a_worker() -> None:
    story = Scenario("a", "b")
    remove(story, "b")
    what = membership(story.state, story.state.workers["b"], None, 3.0)
    assert (what.state, what.is_lost) == ("left", False)
    assert what.reason == "it was removed by operator olga: it lies"


def test_a_worker_that_drains_can_be_removed_and_returns_without_leaving() -> None:
    story = place(stands_by=False)
    story.feed(events.LeaveAsked(story.now, "b", 600.0))
    remove(story, "b")
    assert "b" not in job_of(story).members
    allow(story, "b")
    story.join("b", "boot-2", disk_bytes=10**9, held=[HeldCopy("job-1", StateVersion(1, 0), 1, b"1" * 32, 5)])
    assert story.state.workers["b"].idle and is_whole(story)


def test_an_operator_ends_a_job_whose_submitter_gets_the_weights_first() -> None:
    story = Scenario("a", "b")
    story.running()
    story.all_ready(0)
    outcome = cancel(story)
    (found,) = [one for one in told(outcome.commands) if isinstance(one, Collecting)]
    assert (found.state, found.reason) == ("cancelled", "operator olga cancelled it: too costly")
    assert answer(outcome) == JobCancelled("job-1", "its weights come to its submitter first")
    story.collected()
    assert told(story.commands)[-1] == Ended("job-1", "cancelled", "operator olga cancelled it: too costly")


def test_a_job_ends_at_once_if_asked_so_or_without_its_submitter() -> None:
    for is_held in (True, False):
        story = Scenario("a", "b")
        story.running()
        if is_held:
            story.feed(events.SubmitterLeaves(story.now, "job-1", "its session ended"))
        outcome = cancel(story, at_once=not is_held)
        assert answer(outcome) == JobCancelled("job-1", "")
        assert job_of(story).state == "cancelled" and story.state.backup_pool() == ["a", "b"]


def test_a_queued_job_ends_at_once() -> None:
    story = Scenario()
    story.submit()
    assert answer(cancel(story)) == JobCancelled("job-1", "")
    assert told(story.commands)[-1] == Ended("job-1", "cancelled", "operator olga cancelled it: too costly")


def test_a_submitter_ends_its_own_jobs_from_another_terminal_and_no_others() -> None:
    story = Scenario("a", "b")
    story.running()
    found = answer(cancel(story, "submitter", "eve"))
    assert isinstance(found, Denied) and "eve has no job job-1 here" in found.reason
    cancel(story, "submitter", "ana", at_once=True)
    assert job_of(story).reason == "its submitter, from another terminal, cancelled it: too costly"
    found = answer(cancel(story, "submitter", "ana"))
    assert isinstance(found, Denied) and found.reason.startswith("job-1 is over: cancelled: its submitter")


def test_a_cancel_is_repeated_without_effect() -> None:
    story = Scenario("a", "b")
    story.running()
    cancel(story)
    said = story.say(Cancel("job-1", "Ctrl-C", True))
    assert isinstance(answer(said), Collecting)  # for the submitter, which an operator could not read
    assert answer(cancel(story)) == JobCancelled("job-1", "its weights come to its submitter first")
    assert job_of(story).state == "collecting"
    assert job_of(story).reason == "operator olga cancelled it: too costly"


def test_a_job_whose_only_worker_is_removed_is_said_to_wait() -> None:
    story = Scenario()
    story.join("a")
    story.running(1)
    outcome = remove(story, "a")
    assert job_of(story).state == "queued"
    assert answer(outcome) == MemberChanged(
        "a", "worker", "job-1 goes on with others as soon as there are enough"
    )


def test_who_hears_of_a_removal_hears_by_whose_word_it_ends_however_long_the_reason() -> None:
    removal = Removal("w" * 64, "submitter", 0.0, "o" * 64, "x" * 300)
    assert is_removal(closing(removal.refusal).reason)

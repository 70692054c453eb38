"""Jobs that begin at a later unit, and copies of a job's state that are sent while it trains."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.copy_laws import check_copies
from tests.broker.scenario import RESUMING, Reply, Scenario, loads, sent, told, training

from farflung.broker.core import events, facts, log_lines
from farflung.broker.core.records import Job
from farflung.broker.core.state import durable, replay
from farflung.broker.core.training.overdue import BYTES_PER_SECOND, overdue
from farflung.errors import ProtocolError
from farflung.plans import Placement, Plan
from farflung.protocol import messages
from farflung.protocol.messages import (
    Begin,
    Cancel,
    Collecting,
    Decide,
    Denied,
    Ended,
    Keep,
    Kept,
    Running,
    SendState,
    Submit,
    UnitDone,
)
from farflung.protocol.submitter import MOST_ATTEMPTS
from farflung.runtime.optimizers.declared import AdamW


def job_of(story: Scenario) -> Job:
    return story.state.jobs["job-1"]


def train(story: Scenario, units: int) -> list[int]:
    """Run so many units; the numbers of those that are copied."""
    copied = []
    for _ in range(units):
        unit, before = job_of(story).unit, len(story.commands)
        assert unit is not None
        story.all_ready(unit.number)
        commands = story.commands[before:]
        (done,) = [message for message in told(commands) if isinstance(message, UnitDone)]
        for worker in job_of(story).members:
            (decide,) = [message for message in sent(commands, worker) if isinstance(message, Decide)]
            assert (decide.unit, decide.keep) == (done.unit, done.keep) == (unit.number, done.keep)
        copied += [done.unit] if done.keep else []
    return copied


def stored(story: Scenario, unit: int, attempt: int = 1) -> None:
    story.say(Kept("job-1", attempt, unit))


def test_a_resumed_job_begins_at_its_unit_with_its_step_and_the_next_attempt() -> None:
    story = Scenario("a", "b")
    validation = {"steps": 4, "validate_every": 2, "validation_microbatches": 1}
    story.submit(2, unit=4, attempts=7, **validation)
    assert (job_of(story).unit, job_of(story).step) == (list(training(**validation).units())[4], 3 - 1)
    load = loads(story.planned())["a"]
    assert (load.unit, load.attempt) == (4, 8)
    story.loaded("a", attempt=8)
    outcome = story.loaded("b", attempt=8)
    assert sent(outcome.commands, "a") == [Begin("job-1", 8)]
    assert told(outcome.commands) == [Running("job-1", 8)]
    train(story, 3)
    (collecting,) = [message for message in told(story.commands) if isinstance(message, Collecting)]
    assert (collecting.attempt, collecting.step) == (8, 4)
    decided = [fact for fact in story.facts if isinstance(fact, facts.UnitDecided)]
    assert [(fact.attempt, fact.unit) for fact in decided] == [(8, 4), (8, 5), (8, 6)]
    assert replay(fact for fact in story.facts if isinstance(fact, facts.Decision)) == durable(story.state)


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        (3, "nothing is left to do: the job's 3 steps are done before unit 3; ask for more steps"),
        (4, "the job cannot begin at unit 4: with 3 steps it has no such unit"),
        (2**53, "it has no such unit"),
    ],
)
def test_a_unit_that_the_job_does_not_have_is_denied_in_one_line(unit: int, words: str) -> None:
    story = Scenario("a", "b")
    outcome = story.submit(2, unit=unit)
    (reply,) = outcome.commands
    assert isinstance(reply, Reply) and isinstance(reply.message, Denied)
    assert words in reply.message.reason and reply.message.reason.isprintable()
    assert not outcome.facts and not outcome.blobs and not story.state.jobs


def test_a_submission_of_an_older_version_begins_at_the_first_unit_and_wants_no_copies() -> None:
    story = Scenario("a")
    fields = msgspec.msgpack.decode(messages.encode(Submit("gpt", b"graph", training(), 1)))
    before = {name: value for name, value in fields.items() if name not in RESUMING}
    old = messages.decode(msgspec.msgpack.encode(before), messages.FromSubmitter)
    assert len(before) == len(fields) - len(RESUMING) == len(fields) - 8
    assert (old.unit, old.attempts, old.checkpoint_every, old.checkpoint_end) == (0, 0, 0, False)
    story.running(1)
    assert train(story, 3) == []
    assert sent(story.commands, "a")[-1] == SendState("job-1", 1, whole=False)


def test_attempts_stay_numbers_that_messages_hold() -> None:
    message = Submit("gpt", b"graph", training(), 1, attempts=MOST_ATTEMPTS + 1)
    with pytest.raises(ProtocolError, match="attempts"):
        messages.decode(messages.encode(message), messages.FromSubmitter)


def test_the_state_is_copied_at_each_so_many_steps_of_all_runs() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=12, unit=2, checkpoint_every=4)
    assert train(story, 2) == [3]
    stored(story, 3)
    assert train(story, 4) == [7]
    stored(story, 7)
    assert train(story, 4) == []  # the last unit: the state is sent after it anyway
    assert job_of(story).state == "collecting"


def test_an_evaluation_is_no_step_and_is_never_copied() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=4, validate_every=1, validation_microbatches=1, checkpoint_every=1)
    assert train(story, 2) == [1]
    stored(story, 1)
    story.say(Keep("job-1", 1))
    assert train(story, 1) == []
    assert train(story, 1) == [3]


def test_a_copy_that_is_due_while_another_is_under_way_follows_it() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=20, checkpoint_every=2)
    assert train(story, 6) == [1]  # due after units 3 and 5, too
    stored(story, 1)
    assert train(story, 1) == [6]  # both in one
    stored(story, 6)
    assert train(story, 2) == [7]
    story.say(Keep("job-1", 1))
    assert train(story, 2) == []
    stored(story, 7)
    assert train(story, 1) == [11]


def test_a_submitter_asks_for_one_copy_of_the_next_step() -> None:
    story = Scenario("a", "b")
    story.submit(2, steps=9)
    assert story.say(Keep("job-1", 0)).facts
    assert not story.say(Keep("job-1", 1)).facts  # it is asked for already
    story.planned()
    for worker in ("a", "b"):
        story.loaded(worker)
    assert train(story, 3) == [0]
    stored(story, 0)
    assert train(story, 1) == []
    story.say(Keep("job-1", 0))  # a wish of an attempt that is over
    assert train(story, 1) == [4]
    with pytest.raises(ProtocolError, match="asks for a copy in attempt 2 of job-1, which has not begun"):
        story.say(Keep("job-1", 2))


def test_the_log_says_when_a_copy_is_stored() -> None:
    story = Scenario("a", "b")
    story.running(2, checkpoint_every=1)
    train(story, 1)
    (fact,) = story.say(Kept("job-1", 1, 0)).facts
    assert log_lines.log_line(fact) == "job-1: the submitter has stored the copy of the state after unit 0"


@pytest.mark.parametrize("message", [Kept("job-1", 1, 2), Kept("job-1", 1, 9), Kept("job-1", 2, 1)])
def test_a_copy_that_is_not_under_way_cannot_be_stored(message: Kept) -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9, checkpoint_every=2)
    train(story, 3)
    before = story.state
    with pytest.raises(ProtocolError, match="of job-1, which is not under way"):
        story.say(message)
    assert story.state == before
    stored(story, 1)


def test_a_report_of_a_copy_may_be_said_again() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9, checkpoint_every=2)
    train(story, 3)
    stored(story, 1)
    before = story.state
    assert story.say(Kept("job-1", 1, 1)).state == before
    assert story.say(Kept("job-1", 1, 1, stored=False)).state == before
    train(story, 1)
    assert story.state.jobs["job-1"].copies.under_way == 3
    assert not story.say(Kept("job-1", 1, 1)).facts


def test_a_decision_that_is_sent_again_keeps_what_it_kept() -> None:
    story = Scenario("a", "b")
    story.running(2, checkpoint_every=1)
    for unit, keep in enumerate((True, False)):
        train(story, 1)
        (again,) = sent(story.ready("a", unit).commands, "a")
        assert isinstance(again, Decide) and again.keep == keep
        assert again in sent(story.commands, "b")
        stored_decisions = [fact for fact in story.facts if isinstance(fact, facts.Decision)]
        assert replay(stored_decisions).jobs["job-1"].decisions == (again,)


def test_a_copy_of_an_attempt_that_is_over_is_due_again_and_its_message_ignored() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9, checkpoint_every=3)
    assert train(story, 3) == [2]
    held = job_of(story)
    assert held.plan is not None
    story.take(
        facts.JobRequeued(story.now, "job-1", "worker d was lost"),
        facts.JobPlanning(story.now, "job-1", 2, list(held.members)),
        facts.JobLoading(story.now, "job-1", held.plan, []),
        facts.JobRunning(story.now, "job-1"),
    )
    assert not story.say(Kept("job-1", 1, 2)).facts
    assert train(story, 1) == [3]
    stored(story, 3, attempt=2)
    assert job_of(story).copies.under_way is None


@pytest.mark.parametrize("whole", [True, False])
def test_the_state_at_the_end_and_on_cancel_is_as_whole_as_the_job_asks_for(whole: bool) -> None:
    story = Scenario("a", "b")
    story.running(2, steps=1, checkpoint_end=whole)
    train(story, 1)
    assert sent(story.commands, "a")[-1] == SendState("job-1", 1, whole)
    story = Scenario("a", "b")
    story.running(2, checkpoint_end=whole)
    assert sent(story.cancel(collect=True).commands, "a") == [SendState("job-1", 1, whole)]


def test_a_copy_may_still_arrive_while_the_job_ends() -> None:
    story = Scenario("a", "b")
    story.running(2, checkpoint_every=1)
    train(story, 1)
    story.cancel(collect=True)
    assert not story.say(Keep("job-1", 1)).facts
    stored(story, 0)
    assert job_of(story).state == "collecting"
    story.collected()
    for message in (Kept("job-1", 1, 0), Keep("job-1", 1)):
        outcome = story.say(message)
        assert outcome.commands == (Reply(Ended("job-1", "cancelled", "Ctrl-C")),) and not outcome.facts


def test_only_its_submitter_speaks_of_a_jobs_copies() -> None:
    story = Scenario("a", "b")
    story.running(2, checkpoint_every=1)
    train(story, 1)
    for message in (Keep("job-1", 1), Kept("job-1", 1, 0)):
        (reply,) = story.say(message, submitter="eve").commands
        assert isinstance(reply, Reply) and isinstance(reply.message, Denied)
    assert job_of(story).copies.under_way == 0


def test_what_is_said_of_copies_is_no_progress_of_the_job() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9, checkpoint_every=1)
    train(story, 1)
    pace = job_of(story).pace
    story.now += 5000.0
    stored(story, 0)
    story.say(Keep("job-1", 1))
    assert job_of(story).pace == pace
    (fact, *_) = story.feed(events.Tick(story.now, 900.0)).facts
    assert isinstance(fact, facts.JobRolledBack)
    assert "step 2 is not complete on a, b after 50" in fact.reason


def test_no_copy_makes_a_job_overdue_that_trains() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=900, checkpoint_every=1)
    train(story, 1)
    for _ in range(400):
        train(story, 1)
        story.now += 100.0
        assert not story.feed(events.Tick(story.now, 900.0)).facts
    assert job_of(story).copies.under_way == 0


def test_a_wait_may_be_longer_by_the_copy_that_shares_its_lines() -> None:
    story = Scenario("a")
    story.running(1, steps=9, optimizer=AdamW(0.1), checkpoint_every=1, checkpoint_end=True)
    slow = Plan([Placement(0, ["a"], 1, int(100 * BYTES_PER_SECOND), 3)], [], microbatches=2, window=2)
    train(story, 1)

    def longest(job: Job) -> float:
        """After how many seconds without progress the job is given up, at a patience of 900 s."""
        moments = (job.pace.moved_at + seconds for seconds in range(900, 3000))
        return next(now for now in moments if overdue(job, now, 900.0)) - job.pace.moved_at

    copied = dataclasses.replace(job_of(story), plan=slow)
    alone = dataclasses.replace(copied, copies=copied.copies.failed())
    assert longest(copied) - longest(alone) == 300.0  # the weights and two moments
    for state, whole, seconds in (("loading", True, 300.0), ("collecting", True, 300.0)):
        job = dataclasses.replace(alone, state=state, checkpoint_end=whole)
        assert longest(job) == 901.0 + seconds
    assert longest(dataclasses.replace(alone, state="collecting", checkpoint_end=False)) == 1001.0
    assert longest(dataclasses.replace(alone, state="loading", step=0)) == 1001.0


def test_no_copy_is_made_where_workers_have_no_memory_for_one() -> None:
    story = Scenario("a")
    (denied,) = story.submit(1, checkpoint_every=2, copies=0).commands
    assert isinstance(denied, Reply) and "no memory" in denied.message.reason  # type: ignore[union-attr]
    story.running(1, copies=0)
    assert not story.say(Keep("job-1", 1)).facts


@settings(max_examples=40)
@given(st.data(), st.integers(0, 4), st.integers(0, 1))
def test_copies_of_any_run_follow_each_other_and_none_is_forgotten(
    data: st.DataObject, every: int, validation: int
) -> None:
    story = Scenario("a", "b")
    shape = {"steps": 12, "validate_every": 3, "validation_microbatches": validation}
    last = len(list(training(**shape).units())) - 1
    story.running(2, unit=data.draw(st.integers(0, last)), checkpoint_every=every, **shape)
    while job_of(story).state == "running":
        if data.draw(st.integers(0, 3)) == 0:
            story.say(Keep("job-1", 1))
        under_way = job_of(story).copies.under_way
        if under_way is not None and data.draw(st.booleans()):
            stored(story, under_way)
        train(story, 1)
    check_copies(story.facts)
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(map(facts.decode, log)) == durable(story.state)
    story.say(Cancel("job-1", "over", collect=False))
    assert job_of(story).copies.under_way is None

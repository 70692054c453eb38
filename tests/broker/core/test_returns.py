"""Jobs stand while their broker, workers or submitter are away, and go on when these return."""

from __future__ import annotations

import pytest
from tests.broker.scenario import Reply, Scenario, loads, sent, told

from farflung.broker.core import events, facts
from farflung.broker.core.events import Hold
from farflung.broker.core.records import Job
from farflung.broker.core.state import Outcome
from farflung.protocol.messages import (
    Accepted,
    Begin,
    Broken,
    Cancel,
    Collecting,
    Continue,
    Decide,
    Denied,
    Ended,
    Message,
    Planned,
    Registered,
    Return,
    RolledBack,
    Running,
    SendState,
    Stop,
    UnitDone,
)
from farflung.protocol.registration import Standing


def job_of(story: Scenario, job: str = "job-1") -> Job:
    return story.state.jobs[job]


def standing(unit: int, phase: str = "running", attempt: int = 1, job: str = "job-1") -> Standing:
    return Standing(job, attempt, unit, phase)  # type: ignore[arg-type]


def hears(outcome: Outcome, worker: str) -> list[Message]:
    """What a worker hears after it was admitted."""
    return [one for one in sent(outcome.commands, worker) if not isinstance(one, Registered)]


def restarted(units: int = 2, **changes: object) -> Scenario:
    """A job of two workers that ran so many units when its broker was restarted."""
    story = Scenario("a", "b")
    story.running(2, **changes)
    for unit in range(units):
        story.all_ready(unit)
    story.restart()
    return story


# Workers


def test_a_job_that_runs_waits_for_its_workers_by_name_and_goes_on_with_them() -> None:
    story = restarted()
    job = job_of(story)
    assert (job.state, job.unit and job.unit.number, job.attempt) == ("running", 2, 1)
    assert job.words == "waiting for a, b to return"
    assert [worker.away for worker in story.state.workers.values()] == [True, True]
    assert hears(story.join("a", standing=standing(2)), "a") == []
    assert job_of(story).words == "waiting for b to return"
    story.say(Return("job-1", 1, 2))
    outcome = story.join("b", standing=standing(2))
    assert hears(outcome, "b") == [] and job_of(story).words == ""
    story.ready("a", 2)
    done = told(story.ready("b", 2).commands)
    assert isinstance(done[0], UnitDone) and done[0].unit == 2
    assert not any(isinstance(fact, facts.JobRolledBack) for fact in story.facts)


def test_a_worker_gets_the_decision_that_it_lacks_before_anything_else() -> None:
    story = restarted()
    (decide,) = hears(story.join("a", standing=standing(1)), "a")
    assert isinstance(decide, Decide) and (decide.attempt, decide.unit) == (1, 1)


def test_a_worker_that_never_heard_that_the_job_begins_hears_it_now() -> None:
    story = restarted(0)
    assert hears(story.join("a", standing=standing(0, "loaded")), "a") == [Begin("job-1", 1)]


def test_a_worker_that_has_to_send_its_state_applies_the_last_unit_first() -> None:
    story = restarted(3)
    assert job_of(story).state == "collecting"
    decide, send = hears(story.join("a", standing=standing(2)), "a")
    assert isinstance(decide, Decide) and decide.unit == 2 and isinstance(send, SendState)
    assert hears(story.join("b", standing=standing(3, "collecting")), "b") == []


def test_a_job_that_loads_is_loaded_by_those_that_lack_it_and_begins_with_all() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.planned()
    story.restart()
    assert loads(story.join("a", standing=standing(0, "loading"))) == {}
    outcome = story.join("b")
    (load,) = [command for command in outcome.commands if isinstance(command, events.SendLoad)]
    assert (load.worker, load.load.attempt) == ("b", 1)
    story.loaded("a")
    assert job_of(story).state == "loading"
    story.loaded("b")
    assert job_of(story).state == "running"


def test_what_a_worker_has_loaded_counts_again() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.planned()
    story.restart()
    for worker in ("a", "b"):
        story.join(worker, standing=standing(0, "loaded"))
    assert job_of(story).state == "running"


def test_a_job_that_was_planned_is_queued_again() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.restart()
    assert job_of(story).state == "queued" and not job_of(story).members


def test_a_job_for_every_worker_waits_until_those_that_were_here_are_back() -> None:
    story = Scenario("a", "b")
    story.submit(0)
    story.restart()
    story.say(Return("job-1", 0, 0))
    assert "waiting for a, b to return" in job_of(story).words
    story.join("a")
    assert job_of(story).state == "queued"
    story.tick(41.0)
    assert (job_of(story).state, job_of(story).members) == ("planning", ("a",))


def test_a_worker_that_does_not_return_in_time_counts_as_lost() -> None:
    story = restarted()
    story.join("a", standing=standing(2))
    story.tick(30.0)
    assert job_of(story).state == "running"
    story.tick(20.0)
    assert job_of(story).state == "queued"
    assert "worker b was lost at step 3: it did not return within 40 s" in job_of(story).reason


def test_no_deadline_of_progress_counts_while_a_job_waits() -> None:
    story = restarted()
    story.feed(events.Tick(story.now + 9e4 / 2, 300.0))
    assert job_of(story).state == "running"
    story.say(Return("job-1", 1, 2))
    for worker in ("a", "b"):
        story.join(worker, standing=standing(2))
    story.feed(events.Tick(story.now + 200.0, 300.0))
    assert job_of(story).state == "running"
    story.feed(events.Tick(story.now + 9e6, 300.0))
    assert (
        isinstance(story.facts[-2], facts.JobRolledBack | facts.WaitExplained) and job_of(story).attempt == 2
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "it came back without its part of the job"),
        (standing(0, "loading"), "it came back without its part of the job"),
        (standing(2, "collecting"), "it has come to unit 2, and the broker's log only to unit 2"),
        (standing(3), "it has come to unit 3, and the broker's log only to unit 2: the broker was restored"),
        (standing(0), "it came back at unit 0, but unit 2 is the next"),
        (standing(2, attempt=2), "it came back without its part of the job"),
    ],
)
def test_a_worker_with_another_state_than_the_log_says_costs_the_attempt(
    found: Standing | None, words: str
) -> None:
    story = restarted()
    outcome = story.join("a", standing=found)
    assert job_of(story).state == "queued" and words in job_of(story).reason
    stops = [one for one in hears(outcome, "a") if isinstance(one, Stop)]
    assert bool(stops) == (found is not None)
    assert not any(one.over for one in stops)  # copies on its disk may still be of use


def test_another_process_of_the_same_worker_has_lost_its_part() -> None:
    story = restarted()
    story.join("a", boot="boot-2")
    assert "worker a was lost at step 3: it was restarted" in job_of(story).reason


def test_what_no_job_needs_is_stopped_before_the_worker_is_admitted() -> None:
    story = Scenario("a")
    stop, registered = sent(story.join("a", standing=standing(5, job="job-7")).commands, "a")
    assert stop == Stop("job-7", 1, "this broker has no job-7")
    assert isinstance(registered, Registered)


def test_a_job_that_has_ended_meanwhile_is_stopped_for_good() -> None:
    story = restarted()
    story.say(Cancel("job-1", "enough", collect=False))
    (stop, _) = sent(story.join("a", standing=standing(2)).commands, "a")
    assert isinstance(stop, Stop) and stop.over and "cancelled: enough" in stop.reason


def test_a_worker_whose_session_was_lost_goes_on_with_the_same_broker() -> None:
    story = Scenario("a", "b")
    story.running(2)
    story.all_ready(0)
    outcome = story.join("a", silent_seconds=0.1, standing=standing(1))
    assert hears(outcome, "a") == [] and job_of(story).state == "running"
    assert story.state.workers["a"].job == "job-1"


def test_a_member_that_is_away_hears_of_a_new_attempt_when_it_returns() -> None:
    story = restarted()
    story.join("a", standing=standing(2))
    story.say(Return("job-1", 1, 2))
    story.feed(events.WorkerMessage(story.now, "a", Broken("job-1", 1, "no route", "b")))
    assert (job_of(story).state, job_of(story).attempt) == ("loading", 2)
    decide, go_on = hears(story.join("b", standing=standing(1)), "b")
    assert isinstance(decide, Decide) and (decide.attempt, decide.unit) == (1, 1)
    assert isinstance(go_on, Continue) and (go_on.attempt, go_on.unit) == (2, 2)


# Submitters


def test_a_submitter_hears_what_it_has_missed_and_where_the_job_stands() -> None:
    story = restarted()
    outcome = story.say(Return("job-1", 1, 1))
    assert isinstance(outcome.commands[0], Hold)
    accepted, done, running = told(outcome.commands)
    assert accepted == Accepted("job-1", "waiting for a, b to return", away=["a", "b"])
    assert isinstance(done, UnitDone) and (done.unit, done.attempt, done.loss) == (1, 1, 1.5)
    assert running == Running("job-1", 1) and not job_of(story).held


def test_a_copy_that_is_under_way_is_awaited_by_the_submitter_that_has_its_links() -> None:
    story = restarted(1, checkpoint_every=1, steps=5)
    (done,) = [one for one in told(story.say(Return("job-1", 1, 0)).commands) if isinstance(one, UnitDone)]
    assert done.keep


def test_a_submitter_without_links_goes_on_where_the_workers_are() -> None:
    story = restarted()
    for worker in ("a", "b"):
        story.join(worker, standing=standing(2))
    outcome = story.say(Return("job-1", 0, 0))
    accepted, *done, planned, goes_on = told(outcome.commands)
    assert isinstance(accepted, Accepted) and [one.unit for one in done] == [0, 1]  # type: ignore[attr-defined]
    assert goes_on == Accepted("job-1", "loading")  # it was held, and waits for no one any longer
    assert isinstance(planned, Planned) and planned.keeps and (planned.attempt, planned.unit) == (2, 2)
    assert isinstance(sent(outcome.commands, "a")[-1], Continue)


def test_a_submitter_of_a_job_that_is_collected_hears_so() -> None:
    story = restarted(3)
    *_, collecting = told(story.say(Return("job-1", 1, 3)).commands)
    assert isinstance(collecting, Collecting) and collecting.state == "done"


def test_a_submitter_hears_that_its_attempt_was_rolled_back() -> None:
    story = restarted()
    story.join("a", boot="boot-2")
    _, back, *_ = told(story.say(Return("job-1", 1, 2)).commands)
    assert isinstance(back, RolledBack) and (back.attempt, back.unit, back.step) == (1, 0, 0)


def test_a_plan_that_was_never_heard_is_said_again() -> None:
    story = Scenario("a", "b", "c")
    story.running(2)
    story.leave("a")
    story.planned()
    assert (job_of(story).state, job_of(story).attempt) == ("loading", 2)
    story.restart()
    *_, back, planned = told(story.say(Return("job-1", 1, 0)).commands)
    assert isinstance(back, RolledBack) and isinstance(planned, Planned) and planned.attempt == 2


def test_a_submitter_that_knows_more_than_the_log_goes_back_with_it() -> None:
    story = restarted()
    story.say(Return("job-1", 3, 9))
    assert "the submitter has recorded unit 8 of attempt 3" in job_of(story).reason
    for worker in ("a", "b"):
        story.join(worker)
    assert job_of(story).attempt == 4  # no number is used twice


def test_two_processes_cannot_hold_one_job() -> None:
    story = Scenario("a")
    story.running(1)
    (command,) = story.say(Return("job-1", 0, 0), elsewhere={"job-1": 0.4}).commands
    assert isinstance(command, Reply) and isinstance(command.message, Denied) and command.message.for_now
    assert "another process is the submitter of job-1 (heard 0.4 s ago): stop it first" in str(command)
    assert "farflung attach job-1" in str(command)
    (command,) = story.say(Cancel("job-1", "no", collect=False), elsewhere={"job-1": 9.0}).commands
    assert isinstance(command, Reply) and isinstance(command.message, Denied)
    outcome = story.say(Return("job-1", 1, 0), elsewhere={"job-1": 9.0})
    assert isinstance(outcome.commands[0], Hold)


@pytest.mark.parametrize("name", ["job-1", "job-9"])
def test_a_return_to_a_job_of_another_is_denied(name: str) -> None:
    story = Scenario("a")
    story.running(1)
    (command,) = story.say(Return(name, 0, 0), "eve").commands
    assert isinstance(command, Reply) and isinstance(command.message, Denied) and not command.message.for_now


def test_a_return_to_a_job_that_is_over_says_how_it_ended() -> None:
    story = Scenario("a")
    story.running(1)
    story.cancel(collect=False)
    (command,) = story.say(Return("job-1", 1, 0)).commands
    assert command == Reply(Ended("job-1", "cancelled", "Ctrl-C"))


def test_the_same_job_is_not_submitted_twice() -> None:
    story = Scenario()
    story.submit(1, run="r-1")
    (accepted, *_) = told(story.submit(1, run="r-1").commands)
    assert isinstance(accepted, Accepted) and list(story.state.jobs) == ["job-1"]
    for changes in ({"run": "r-2"}, {"run": "r-1", "attempts": 1}, {}, {}):
        story.submit(1, **changes)
    assert len(story.state.jobs) == 5
    story.cancel(collect=False)
    story.submit(1, run="r-1")
    assert len(story.state.jobs) == 6


def test_a_job_stands_while_its_submitter_is_away_and_keeps_its_workers_for_a_while() -> None:
    story = Scenario("a", "b")
    story.running(2)
    story.feed(events.SubmitterLeaves(story.now, "job-1", "connection reset"))
    job = job_of(story)
    assert job.held and job.state == "running"
    assert job.words == (
        "its submitter is away: it waits for it until 1970-01-02 00:16 UTC; where that ran,"
        " `farflung train JOB --resume RUN` goes on"
    )
    story.all_ready(0)
    story.tick(500.0)
    assert job_of(story).state == "running"
    outcome = story.tick(200.0)
    assert job_of(story).state == "queued" and isinstance(sent(outcome.commands, "a")[-1], Stop)
    assert "away for 600 s, so its workers are free" in job_of(story).reason
    assert story.state.backup_pool() == ["a", "b"]
    story.say(Return("job-1", 0, 1))
    assert job_of(story).state == "planning" and job_of(story).recovery.failed == 0


def test_a_job_whose_submitter_is_away_blocks_no_other() -> None:
    story = Scenario("a")
    story.submit(1)
    story.feed(events.SubmitterLeaves(story.now, "job-1", "gone"))
    assert job_of(story).state == "queued"  # what was planned is not worth a worker
    story.submit(1, submitter="bo")
    assert job_of(story, "job-2").state == "planning"


def test_a_submitter_that_never_returns_ends_its_job_at_last() -> None:
    story = Scenario("a")
    story.submit(1, patience_seconds=100)
    story.feed(events.SubmitterLeaves(story.now, "job-1", "gone"))
    story.tick(90.0)
    assert not job_of(story).over
    story.tick(20.0)
    assert job_of(story).state == "failed"
    assert "its submitter did not return within 100 s" in job_of(story).reason


def test_only_a_cancel_counts_from_one_that_does_not_hold_the_job() -> None:
    story = Scenario("a")
    story.running(1)
    story.feed(events.SubmitterLeaves(story.now, "job-1", "gone"))
    (command,) = story.collected().commands
    assert isinstance(command, Reply) and isinstance(command.message, Denied)
    story.cancel(collect=False)
    assert job_of(story).state == "cancelled"


def test_so_many_results_are_kept_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farflung.broker.core.reducing.unit_reducer.MOST_RESULTS", 2)
    story = restarted(4, steps=9)
    done = [one.unit for one in told(story.say(Return("job-1", 1, 0)).commands) if isinstance(one, UnitDone)]
    assert done == [2, 3]

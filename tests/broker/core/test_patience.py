"""A job that has lost its workers waits as long as its patience lasts, and says for whom and until when."""

from __future__ import annotations

import pytest
from tests.broker.scenario import Scenario, told

from farflung.broker.core import events
from farflung.broker.core.records import Job
from farflung.protocol.messages import Accepted, Ended, Return


def job_of(story: Scenario, job: str = "job-1") -> Job:
    return story.state.jobs[job]


def lost(**changes: object) -> Scenario:
    """A job of two workers that has lost one of them, and has a patience of 100 s."""
    story = Scenario("a", "b")
    story.running(2, patience_seconds=100, **changes)
    story.leave("b")
    return story


def test_a_job_whose_worker_stays_away_ends_when_its_patience_is_over() -> None:
    story = lost()
    story.tick(90.0)
    assert job_of(story).state == "queued"
    outcome = story.tick(10.0)
    assert job_of(story).state == "failed"
    reason = (
        "worker b was lost at step 1: connection reset; waited 100 s for 1 more worker (have 1, the job needs"
        " 2): `farflung train --resume` goes on from a checkpoint, if there is one"
    )
    assert told(outcome.commands) == [Ended("job-1", "failed", reason)]


def test_the_wait_says_until_when() -> None:
    story = lost()
    assert job_of(story).words.endswith(", at most until 1970-01-01 00:18 UTC")


def test_a_job_that_runs_again_has_all_of_its_patience() -> None:
    story = lost()
    story.tick(90.0)
    story.join("b")
    story.planned(attempt=2)
    assert job_of(story).waits_until is not None  # it may wait again before it runs
    for worker in "a", "b":
        story.loaded(worker, attempt=2)
    assert job_of(story).state == "running" and job_of(story).waits_until is None
    story.leave("b")
    story.tick(90.0)
    assert job_of(story).state == "queued"


def test_plans_that_fail_do_not_lengthen_the_wait() -> None:
    story = lost()
    story.tick(60.0)
    story.join("c")
    story.feed(events.PlanFailed(story.now, "job-1", 2, "the model does not fit"))
    assert "waiting for 1 more worker" in job_of(story).words
    story.tick(60.0)
    assert job_of(story).state == "failed" and "waited 100 s for 1 more worker" in job_of(story).reason


def test_a_submitter_that_returns_brings_its_patience_along() -> None:
    story = lost()
    story.tick(50.0)
    story.feed(events.SubmitterLeaves(story.now, "job-1", "connection reset"))
    story.tick(90.0)
    assert "its submitter is away" in job_of(story).words
    story.say(Return("job-1", 0, 0))
    story.tick(90.0)
    assert job_of(story).state == "queued"
    story.tick(20.0)
    assert job_of(story).state == "failed"


def test_a_broker_that_was_away_for_long_still_waits() -> None:
    story = lost()
    story.now += 1000.0
    story.restart()
    story.say(Return("job-1", 0, 0))
    assert job_of(story).state == "queued"


@pytest.mark.parametrize("job", ["job-1", "job-2"])
def test_a_job_that_never_had_workers_waits_until_it_is_stopped(job: str) -> None:
    story = Scenario("a")
    for _ in range(2):
        story.submit(2, patience_seconds=100)
    story.tick(1000.0)
    assert job_of(story, job).state == "queued" and "until" not in job_of(story, job).words


def test_those_behind_a_job_that_ends_so_begin_at_once() -> None:
    story = lost()
    story.submit(1, submitter="bo")
    assert "waiting for job-1, which is ahead" in job_of(story, "job-2").words
    outcome = story.tick(100.0)
    assert job_of(story, "job-2").state == "planning"
    assert any(isinstance(said, Accepted) for said in told(outcome.commands, "job-2"))

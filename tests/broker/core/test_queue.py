"""Jobs begin in order, but one that needs others to join does not block those behind it."""

from __future__ import annotations

import pytest
from tests.broker.scenario import EMULATED_DEVICE, Scenario, told

from farflung.broker.core import events
from farflung.broker.core.training import job_queue
from farflung.protocol.messages import Accepted


def states(story: Scenario) -> list[str]:
    return [job.state for job in story.state.jobs.values()]


def said(story: Scenario, job: str) -> str:
    found = [message.state for message in told(story.commands, job) if isinstance(message, Accepted)]
    return found[-1]


def test_a_job_for_more_workers_than_there_are_blocks_no_other() -> None:
    """One submitter blocked all others by a job that could never run."""
    story = Scenario("a", "b")
    story.submit(1000, submitter="eve")
    story.submit(2)
    assert states(story) == ["queued", "planning"]
    assert "have 0, the job needs 1000; 2 workers are busy with job-2" in said(story, "job-1")


def test_a_job_for_workers_that_are_not_there_blocks_no_other() -> None:
    story = Scenario("a", "b")
    story.submit(on=["a", "nobody"], submitter="eve")
    story.submit(2)
    assert states(story) == ["queued", "planning"]


def test_a_job_that_waits_for_workers_that_others_have_is_next() -> None:
    story = Scenario("a", "b", "c")
    story.submit(2)
    story.submit(2)  # with c alone it cannot begin
    story.submit(1)
    assert states(story) == ["planning", "queued", "queued"]
    assert said(story, "job-3") == "waiting for job-2, which is ahead of it in the queue"


def test_once_enough_have_joined_a_large_job_is_next() -> None:
    story = Scenario("a", "b")
    story.submit(3)
    story.submit(2)
    story.submit(2)
    assert states(story) == ["queued", "planning", "queued"]
    story.join("c")  # now it only waits for a and b
    assert "ahead of it in the queue" in said(story, "job-3") and "job-1" in said(story, "job-3")
    story.feed(events.PlanFailed(story.now, "job-2", 1, "the model is too large"))
    assert states(story) == ["planning", "failed", "queued"]


def test_workers_of_another_kind_do_not_count() -> None:
    story = Scenario("a")
    story.join("e", device=EMULATED_DEVICE)
    story.submit(2)
    story.submit(1)
    assert states(story) == ["queued", "planning"]


def test_a_turn_looks_at_each_job_that_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    story, looked_at, start = Scenario("a"), list[str](), job_queue._start

    def noting(turn: object, job: object, blocked: object) -> object:
        looked_at.append(job.job)  # type: ignore[attr-defined]
        return start(turn, job, blocked)  # type: ignore[arg-type]

    for _ in range(50):
        story.submit(1)
    monkeypatch.setattr(job_queue, "_start", noting)
    story.tick(1)
    assert states(story).count("queued") == 49
    assert len(looked_at) == len({*looked_at}) == 49

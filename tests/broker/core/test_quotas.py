"""A submitter has so many jobs that are not over, and so many bytes of graphs."""

from __future__ import annotations

import pytest
from tests.broker.scenario import Reply, Scenario

from farflung.broker.core import facts
from farflung.broker.core.state import Outcome, durable, replay
from farflung.broker.core.training import quotas
from farflung.protocol.messages import Cancel, Denied


def denials(outcome: Outcome) -> list[str]:
    found = [one.message for one in outcome.commands if isinstance(one, Reply)]
    return [message.reason for message in found if isinstance(message, Denied)]


def test_one_submitter_has_so_many_open_jobs_and_others_are_not_affected() -> None:
    """3,000 jobs of one submitter silenced a broker: each turn looks at all that wait."""
    story = Scenario()
    for _ in range(quotas.MOST_JOBS):
        assert not denials(story.submit(2))
    (reason,) = denials(story.submit(2))
    assert reason.startswith("ana has 200 jobs that are not over, and may have 200")
    assert "`farflung job cancel`" in reason and len(story.state.jobs) == quotas.MOST_JOBS
    assert not denials(story.submit(2, submitter="bob"))
    story.say(Cancel("job-7", "no", False))
    assert not denials(story.submit(2))


def test_graphs_of_open_jobs_have_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MOST_BYTES", 12)
    story = Scenario()
    assert not denials(story.submit(2)) and not denials(story.submit(2))  # each has five
    (reason,) = denials(story.submit(2))
    assert "have 10 bytes, and with this one more than the 12 that they may have" in reason
    story.say(Cancel("job-1", "no", False))
    assert not denials(story.submit(2))
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(map(facts.decode, log)) == durable(story.state)


def test_what_is_submitted_again_after_a_lost_answer_is_no_new_job() -> None:
    story = Scenario()
    for number in range(quotas.MOST_JOBS):
        story.submit(2, run=f"run-{number}")
    again = story.submit(2, run="run-3")
    assert not denials(again) and len(story.state.jobs) == quotas.MOST_JOBS

"""Workers that are all there keep their state when an attempt cannot go on: no decided unit runs again."""

from __future__ import annotations

import pytest
from tests.broker.core.test_recovery import job_of, load_all
from tests.broker.scenario import Scenario, told

from farflung.broker.core import events
from farflung.broker.core.events import Send
from farflung.broker.core.state import durable, replay
from farflung.protocol.messages import (
    Begin,
    Broken,
    Cancel,
    Collected,
    Collecting,
    Continue,
    Ended,
    Planned,
    Refused,
    RolledBack,
    SendState,
)


def cut(story: Scenario) -> None:
    story.feed(events.WorkerMessage(story.now, "a", Broken("job-1", job_of(story).attempt, "cut", "b")))


def sent(story: Scenario, kind: type) -> list[Send]:
    return [one for one in story.commands if isinstance(one, Send) and isinstance(one.message, kind)]


def test_a_lost_link_costs_the_unit_in_flight_and_no_other() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9)
    for unit in range(3):
        story.all_ready(unit)
    story.ready("a", 3)
    cut(story)
    assert [(one.worker, one.message.attempt, one.message.unit) for one in sent(story, Continue)] == [
        ("a", 2, 3),
        ("b", 2, 3),
    ]
    planned = [message for message in told(story.commands) if isinstance(message, Planned)][-1]
    assert (planned.attempt, planned.keeps, planned.unit) == (2, True, 3)
    assert planned.owned == [["weight-0"], ["weight-1"], ["weight-2"]] and "cut" in planned.reason
    assert (job_of(story).state, job_of(story).step) == ("loading", 3)
    load_all(story)
    assert {one.worker for one in sent(story, Begin) if one.message.attempt == 2} == {"a", "b"}
    for unit in range(3, 9):
        story.all_ready(unit)
    assert job_of(story).state == "collecting"
    assert not any(isinstance(message, RolledBack) for message in told(story.commands))
    assert replay([fact for fact in story.facts if hasattr(fact, "at")]) == durable(story.state)


def test_the_other_end_of_a_lost_link_says_the_same_and_changes_nothing() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9)
    story.all_ready(0)
    cut(story)
    before = story.state
    story.feed(events.WorkerMessage(story.now, "b", Broken("job-1", 1, "cut", "a")))
    assert story.state == before


def test_a_worker_that_is_lost_meanwhile_rolls_the_job_back() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9)
    story.all_ready(0)
    cut(story)
    story.leave("b")
    assert isinstance(told(story.commands)[-2], RolledBack)
    assert (job_of(story).state, job_of(story).keeps) == ("queued", False)


def test_a_worker_without_the_state_rolls_the_job_back() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9)
    story.all_ready(0)
    cut(story)
    story.feed(events.WorkerMessage(story.now, "b", Refused("job-1", 2, "it does not hold the state")))
    back = [message for message in told(story.commands) if isinstance(message, RolledBack)]
    assert [message.unit for message in back] == [0] and not job_of(story).over


def test_workers_that_were_sending_their_state_send_it_again() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=1)
    story.all_ready(0)
    assert job_of(story).state == "collecting"
    cut(story)
    assert job_of(story).state == "loading" and sent(story, Continue)[-1].message.unit == 1
    load_all(story)
    assert job_of(story).state == "collecting" and sent(story, SendState)[-1].message.attempt == 2
    story.say(Collected("job-1", 2))
    assert job_of(story).state == "done"


@pytest.mark.parametrize("regrouped", [1, 2])
def test_a_state_that_came_home_before_the_workers_regrouped_counts(regrouped: int) -> None:
    story = Scenario("a", "b")
    story.running(2, steps=1)
    story.all_ready(0)
    for _ in range(regrouped):
        cut(story)
    story.say(Collected("job-1", 1))
    assert job_of(story).state == "done"


def test_a_job_that_is_stopped_while_its_workers_regroup_sends_its_weights() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9)
    story.all_ready(0)
    cut(story)
    story.say(Cancel("job-1", "stopped by the user", collect=True))
    story.say(Cancel("job-1", "stopped again", collect=True))
    assert job_of(story).state == "loading"
    load_all(story)
    assert (job_of(story).state, job_of(story).ending) == ("collecting", "cancelled")
    collecting = [message for message in told(story.commands) if isinstance(message, Collecting)]
    assert [(one.attempt, one.step, one.reason) for one in collecting] == [(2, 1, "stopped by the user")]
    story.say(Collected("job-1", 2))
    (end,) = [message for message in told(story.commands) if isinstance(message, Ended)]
    assert (end.state, end.reason) == ("cancelled", "stopped by the user")


def test_links_that_break_in_each_attempt_lead_to_another_plan() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9)
    story.all_ready(0)
    for _ in range(2):
        cut(story)
        load_all(story)
        assert job_of(story).state == "running"
    cut(story)
    assert job_of(story).state == "planning"

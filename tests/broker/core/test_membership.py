"""The state of each worker, in all cases, and how long those that left are listed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.broker.core.test_draining import decide_unit, leave, spread
from tests.broker.core.test_replaying import place
from tests.broker.scenario import Scenario

from farflung.broker.core.fleet.membership import LISTED_SECONDS, MOST_LISTED, Membership, listed, membership
from farflung.protocol.fields import shutting_down


def of(story: Scenario, worker: str, silent: float | None = 0.5, joining: str = "") -> Membership:
    return membership(story.state, story.state.workers[worker], silent, 3.0, joining)


def ready(story: Scenario) -> Membership:
    story.join("e")  # without a disk for copies, or it would stand by
    return of(story, "e")


def joining(story: Scenario) -> Membership:
    story.join("e")
    return of(story, "e", joining="e")


def training(story: Scenario) -> Membership:
    return of(story, "b", joining="b")


def suspect(story: Scenario) -> Membership:
    return of(story, "b", silent=4.2)


def draining(story: Scenario) -> Membership:
    leave(story, "b")
    return of(story, "b")


def standby(story: Scenario) -> Membership:
    leave(story, "b", within=0)  # d takes over, and b comes back
    held = story.state.workers["b"].held
    story.join("b", boot="boot-2", held=held, disk_bytes=10**9)
    return of(story, "b")


def lost(story: Scenario) -> Membership:
    story.leave("d")
    return of(story, "d", silent=None)


def stopped(story: Scenario) -> Membership:
    story.leave("d", shutting_down("d"))
    return of(story, "d")


def released(story: Scenario) -> Membership:
    story.join("e")
    leave(story, "e")
    return of(story, "e", silent=90)


def expected_back(story: Scenario) -> Membership:
    story.restart()
    return of(story, "b", silent=None)


@pytest.mark.parametrize(
    ("case", "state", "reason", "is_lost"),
    [
        (ready, "ready", "", False),
        (joining, "joining", "", False),
        (training, "training", "", False),
        (suspect, "suspect", "it has been silent for 4 s", False),
        (draining, "draining", "its owner stops it; it waits for copies of job-1's state", False),
        (standby, "standby", "it holds copies of job-1's state", False),
        (lost, "left", "connection reset", True),
        (stopped, "left", "worker d is shutting down", False),
        (released, "left", "it left in good order: its owner stops it", False),
        (expected_back, "suspect", "it is expected to return: the broker was restarted", False),
    ],
)
def test_each_worker_has_one_state(
    case: Callable[[Scenario], Membership], state: str, reason: str, is_lost: bool
) -> None:
    assert case(place(units=8)) == Membership(state, reason, is_lost)


def test_a_worker_that_has_left_is_no_member_any_more() -> None:
    story = place(units=8)
    leave(story, "b")
    spread(story, decide_unit(story))
    decide_unit(story)
    assert of(story, "b").state == "draining" and of(story, "d").state == "training"


def test_those_that_left_are_listed_for_a_day_the_newest_only() -> None:
    story = Scenario("a", "b")
    story.leave("b")
    assert [one.worker for one in listed(story.state, story.now)] == ["a", "b"]
    assert [one.worker for one in listed(story.state, story.now + LISTED_SECONDS + 2)] == ["a"]
    for number in range(MOST_LISTED + 5):
        story.join(f"w{number}")
        story.leave(f"w{number}")
    assert len(listed(story.state, story.now)) == 1 + MOST_LISTED

"""A job whose attempt failed goes on where its submitter has the state, and never without end or words."""

from __future__ import annotations

import pytest
from tests.broker.scenario import Scenario, told, training

from farflung.broker.core import events, facts
from farflung.broker.core.records import Job
from farflung.broker.core.recovering.recovery import MOST_FRUITLESS, MOST_REGROUPED, MOST_UNLINKED
from farflung.broker.core.state import replay
from farflung.errors import ProtocolError
from farflung.protocol.messages import (
    Accepted,
    Broken,
    Cancel,
    Collected,
    Ended,
    Kept,
    RolledBack,
)


def job_of(story: Scenario) -> Job:
    return story.state.jobs["job-1"]


def again(story: Scenario) -> None:
    """The next attempt is planned, loaded and runs."""
    story.planned()
    load_all(story)


def cut_until_the_end(story: Scenario) -> None:
    """Cut the link between a and b in each attempt: two that regroup, one that rolls back, and so on."""
    for _ in range(MOST_FRUITLESS * (MOST_REGROUPED + 1)):
        assert not job_of(story).over
        story.feed(events.WorkerMessage(story.now, "a", Broken("job-1", job_of(story).attempt, "cut", "b")))
        if job_of(story).state == "planning":
            story.planned()
        load_all(story)


def load_all(story: Scenario) -> None:
    for worker in job_of(story).members:
        story.loaded(worker, attempt=job_of(story).attempt)


def test_the_job_goes_on_from_the_newest_copy_that_the_submitter_has_stored() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9, checkpoint_every=2)
    for unit in range(2):
        story.all_ready(unit)
    story.say(Kept("job-1", 1, 1))
    for unit in range(2, 5):
        story.all_ready(unit)
    assert (job_of(story).step, job_of(story).copies.under_way) == (5, 3)
    back = told(story.leave("b").commands)[0]
    assert isinstance(back, RolledBack) and (back.attempt, back.unit, back.step) == (1, 2, 2)
    assert (job_of(story).step, job_of(story).unit) == (2, training(steps=9).units().at(2))
    assert not job_of(story).decisions
    story.join("b")
    again(story)
    for unit in range(2, 9):
        story.all_ready(unit)
    assert job_of(story).state == "collecting"


def test_without_a_copy_it_begins_where_it_was_submitted() -> None:
    story = Scenario("a")
    story.running(1, steps=9, unit=4, attempts=3)
    story.all_ready(4)
    back = told(story.leave("a").commands)[0]
    assert isinstance(back, RolledBack) and (back.attempt, back.unit, back.step) == (4, 4, 4)


def test_a_copy_that_could_not_be_stored_is_none() -> None:
    story = Scenario("a")
    story.running(1, steps=9, checkpoint_every=1)
    story.all_ready(0)
    story.say(Kept("job-1", 1, 0, stored=False))
    assert job_of(story).copies.under_way is None
    back = told(story.leave("a").commands)[0]
    assert isinstance(back, RolledBack) and back.unit == 0


def test_a_copy_that_was_under_way_is_made_in_the_next_attempt() -> None:
    story = Scenario("a")
    story.running(1, steps=9, checkpoint_every=4)
    for unit in range(4):
        story.all_ready(unit)
    assert job_of(story).copies.under_way == 3
    story.leave("a")
    story.say(Kept("job-1", 1, 3))  # too late: the attempt is over
    story.join("a")
    again(story)
    story.all_ready(0)
    assert job_of(story).copies.under_way == 0


def test_attempts_that_get_no_further_end_the_job() -> None:
    story = Scenario("a", "b")
    story.running(2)
    cut_until_the_end(story)
    (end,) = [message for message in told(story.commands) if isinstance(message, Ended)]
    assert end.state == "failed"
    assert end.reason.endswith(f"cut; {MOST_FRUITLESS} attempts in a row ended without a new step")
    assert story.state.backup_pool() == ["a", "b"]


def test_a_resumed_job_ends_after_as_many_fruitless_attempts() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9, unit=4, attempts=3)
    cut_until_the_end(story)
    assert job_of(story).state == "failed"


def apart(story: Scenario) -> None:
    story.feed(events.WorkerMessage(story.now, "a", Broken("job-1", job_of(story).attempt, "no way", "b")))


def test_workers_that_do_not_link_up_at_first_are_tried_once_more() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.planned()
    apart(story)
    assert (job_of(story).state, job_of(story).attempt) == ("planning", 2)
    again(story)
    story.all_ready(0)
    assert (job_of(story).state, job_of(story).recovery.unlinked) == ("running", 0)


def noted(story: Scenario) -> list[tuple[str, str]]:
    return [(one.worker, one.peer) for one in story.commands if isinstance(one, events.NoteApart)]


def test_neighbours_that_do_not_link_up_while_they_load_are_noted() -> None:
    story = Scenario(*"abc")
    story.submit(3)
    story.planned()
    apart(story)
    assert noted(story) == [("a", "b")]
    again(story)  # what is lost in a run may come back
    apart(story)
    assert noted(story) == [("a", "b")]


@pytest.mark.parametrize("peer", ["b", "e", "nobody"])
def test_one_that_is_away_or_is_no_neighbour_says_nothing_of_a_link(peer: str) -> None:
    story = Scenario(*"abcde")
    story.submit(4)
    story.planned()
    story.take(facts.WorkerAway(story.now, "b", "the broker was restarted"))
    broken = Broken("job-1", job_of(story).attempt, "no way", peer)
    story.feed(events.WorkerMessage(story.now, "a", broken))
    assert not noted(story)


def test_workers_that_have_no_way_to_each_other_end_a_job_that_never_ran() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    for _ in range(MOST_UNLINKED):
        assert not job_of(story).over
        story.planned()
        apart(story)
    assert job_of(story).state == "failed" and story.state.backup_pool() == ["a", "b"]
    assert job_of(story).reason.endswith("no way; 3 attempts before ended in the same way")


def test_a_job_that_needs_a_link_that_cannot_be_made_says_what_was_tried() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.planned()
    apart(story)
    story.feed(events.PlanFailed(story.now, "job-1", job_of(story).attempt, "2 workers were asked for"))
    assert job_of(story).state == "failed" and "no way" in job_of(story).reason
    assert job_of(story).reason.endswith("and without this link 2 workers were asked for")


def test_an_attempt_that_ran_between_two_without_links_gives_the_job_its_usual_number_of_tries() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.planned()
    apart(story)
    again(story)
    story.leave("b")
    story.join("b")
    story.planned()
    apart(story)
    assert job_of(story).state == "planning"


def test_attempts_that_never_bring_the_state_home_end_the_job() -> None:
    story = Scenario("a")
    story.running(1, steps=1)
    for _ in range(MOST_FRUITLESS + 1):  # the first one got further
        assert not job_of(story).over
        story.all_ready(0)
        assert job_of(story).state == "collecting"
        story.leave("a")
        story.join("a")
        if job_of(story).state == "planning":
            again(story)
    assert job_of(story).state == "failed"
    assert "attempts in a row ended without a new step" in job_of(story).reason


def test_attempts_that_get_further_may_fail_for_ever() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=50, checkpoint_every=1)
    for unit in range(2 * MOST_FRUITLESS):
        story.all_ready(unit)
        story.say(Kept("job-1", job_of(story).attempt, unit))
        story.leave("b")
        story.join("b")
        again(story)
    assert job_of(story).state == "running" and job_of(story).step == 2 * MOST_FRUITLESS


def test_a_segment_that_fails_ends_the_job_at_once() -> None:
    story = Scenario("a", "b")
    story.running(2)
    story.feed(events.WorkerMessage(story.now, "a", Broken("job-1", 1, "index 9 is out of bounds")))
    assert job_of(story).state == "failed" and "out of bounds" in job_of(story).reason


def test_a_job_that_does_not_fit_on_those_that_are_left_waits_for_another() -> None:
    story = Scenario("a", "b")
    story.submit(0)
    story.planned()
    load_all(story)
    story.leave("b")
    assert job_of(story).state == "planning"
    outcome = story.feed(events.PlanFailed(story.now, "job-1", 2, "the model does not fit into memory"))
    (said,) = told(outcome.commands)
    assert isinstance(said, Accepted)
    assert "does not fit into memory; waiting for 1 more worker" in said.state
    assert not story.feed(events.Tick(story.now, 900.0)).facts
    story.join("c")
    assert (job_of(story).state, job_of(story).members) == ("planning", ("a", "c"))
    assert isinstance(story.planned(attempt=3).facts[0], facts.JobLoading)


def test_a_worker_that_registers_again_may_be_what_the_job_waits_for() -> None:
    story = Scenario("a", "b")
    story.submit(0)
    story.planned()
    load_all(story)
    story.leave("b")
    story.feed(events.PlanFailed(story.now, "job-1", 2, "the model does not fit into memory"))
    assert job_of(story).state == "queued"
    story.join("a", boot="boot-2")  # its owner gives it more memory now
    assert job_of(story).state == "planning"


def test_a_job_that_never_ran_and_cannot_be_planned_ends() -> None:
    story = Scenario("a")
    story.submit(0)
    story.feed(events.PlanFailed(story.now, "job-1", 1, "the model does not fit into memory"))
    assert job_of(story).state == "failed"


def test_a_worker_lost_after_everything_was_collected_changes_nothing() -> None:
    story = Scenario("a")
    story.running(1, steps=1)
    story.all_ready(0)
    story.leave("a")
    story.join("a")
    assert job_of(story).state == "planning"
    story.say(Collected("job-1", 1))
    assert (job_of(story).state, job_of(story).reason) == ("done", "")


def test_what_was_never_collected_is_no_end() -> None:
    story = Scenario("a")
    story.running(1, steps=2)
    story.leave("a")
    with pytest.raises(ProtocolError, match="collected job-1, which is queued"):
        story.say(Collected("job-1", 1))


def test_no_attempt_is_collected_before_the_first() -> None:
    story = Scenario("a")
    story.running(1, steps=2)
    story.say(Collected("job-1", 0))
    assert job_of(story).state == "running"


def test_a_user_may_stop_a_job_that_waits_to_go_on() -> None:
    story = Scenario("a")
    story.running(1)
    story.leave("a")
    story.say(Cancel("job-1", "stopped by the user", collect=True))
    assert (job_of(story).state, job_of(story).reason) == ("cancelled", "stopped by the user")


def test_the_stored_decisions_give_the_same_state() -> None:
    story = Scenario("a", "b")
    story.running(2, steps=9, checkpoint_every=2)
    for unit in range(2):
        story.all_ready(unit)
    story.say(Kept("job-1", 1, 1))
    story.leave("b")
    story.join("b")
    again(story)
    story.all_ready(2)
    decisions = [fact for fact in story.facts if isinstance(fact, facts.Decision)]
    replayed = replay(facts.decode(facts.encode(fact)) for fact in decisions)
    assert replayed.jobs["job-1"].copies == job_of(story).copies
    assert replayed.jobs["job-1"].recovery == job_of(story).recovery
    assert replayed.jobs["job-1"].unit == job_of(story).unit

"""A job that trains moves to a better plan, and loses no step by that."""

from __future__ import annotations

import pytest
from tests.broker.core.test_protection import job_of, spread
from tests.broker.core.test_restoring import place
from tests.broker.scenario import Scenario, plan_over, sent, told

from farflung.broker.core import events, facts
from farflung.broker.core.events import ConsiderPlan, RunPlanner
from farflung.broker.core.fleet.replanning import FORGET_SECONDS, LEAST_CONSIDER_SECONDS, LEAST_STEPS
from farflung.broker.core.records import LOADING, RUNNING
from farflung.broker.core.state import Outcome, durable, replay
from farflung.broker.planning.messages import PlanResult
from farflung.plans import Prediction
from farflung.protocol.copies import StateVersion
from farflung.protocol.messages import Broken, Considered, Decide, Planned, Refused, RolledBack, Stop
from farflung.protocol.worker import SegmentProgram
from farflung.text import format_seconds

FIRST = 3  # `place` has decided the units before
MOVE = 8  # the last unit before a move, if the planner answers at once


def asked(*spare: str) -> Scenario:
    """Workers a, b and c have run some steps of job-1, and the planner is asked for a better plan.

    Another version of its state is not due for long.
    """
    story = place(*spare)
    for unit in range(FIRST, MOVE):
        story.all_ready(unit)
        settle(story, unit)
    story.tick(1)
    assert asks(story)
    return story


def settle(story: Scenario, unit: int) -> None:
    """What is copied after a unit arrives."""
    if job_of(story).versions.under_way is not None:
        spread(story, unit)


def asks(story: Scenario) -> list[ConsiderPlan]:
    return [one for one in story.commands if isinstance(one, ConsiderPlan)]


def answer(
    story: Scenario, *workers: str, step_seconds: float = 0.5, current_seconds: float | None = 1.0
) -> Outcome:
    """The planner has found a plan over these workers."""
    plan = plan_over(list(workers))
    names = [f"weight-{part.segment}" for part in plan.placements]
    programs = [SegmentProgram(number, b"program", {name: 4}) for number, name in enumerate(names)]
    prediction = Prediction("auto", step_seconds, "the device of a")
    result = PlanResult(plan, programs, [[name] for name in names], prediction)
    return story.feed(
        events.PlanConsidered(story.now, "job-1", job_of(story).attempt, result, current_seconds)
    )


def considered(outcome: Outcome) -> Considered:
    return next(one for one in told(outcome.commands) if isinstance(one, Considered))


def moving(*workers: str) -> Scenario:
    """The version after which job-1 moves to these workers is under way."""
    story = asked("d")
    assert considered(answer(story, *workers)).moves
    story.all_ready(MOVE)
    under_way = job_of(story).versions.under_way
    assert under_way is not None and under_way.name == StateVersion(1, MOVE)
    assert job_of(story).replanning.is_moving
    return story


def test_the_planner_is_asked_with_new_workers_and_not_again_before_something_changes() -> None:
    story = asked()
    (first,) = asks(story)
    assert (first.workers, first.current, first.count) == (("a", "b", "c"), job_of(story).plan, 3)
    story.tick(1)
    assert len(asks(story)) == 1
    answer(story, "a", "b", "c")
    story.tick(1)
    assert len(asks(story)) == 1
    story.join("d", disk_bytes=10**9)
    story.tick(LEAST_CONSIDER_SECONDS)
    assert asks(story)[-1].workers == ("a", "b", "c", "d")


def test_a_job_moves_right_after_its_version_and_loses_no_step() -> None:
    story = moving("a", "b", "d")
    story.all_ready(MOVE + 1)
    assert job_of(story).next_unit == MOVE + 1  # what is ready waits for the move
    before = len(story.commands)
    spread(story, MOVE)
    job, commands = job_of(story), story.commands[before:]
    assert (job.state, job.attempt, job.members, job.next_unit) == (LOADING, 2, ("a", "b", "d"), MOVE + 1)
    for survivor in "abc":
        assert any(isinstance(one, Stop) for one in sent(commands, survivor))
    back, planned = [one for one in told(commands) if isinstance(one, RolledBack | Planned)]
    assert isinstance(back, RolledBack) and (back.unit, back.step, back.held) == (MOVE + 1, MOVE + 1, True)
    assert isinstance(planned, Planned) and (planned.unit, planned.recut) == (MOVE + 1, True)
    assert back.in_order and planned.prediction is not None
    assert f"on another plan {format_seconds(planned.prediction.step_seconds)};" in back.reason
    assert back.reason.startswith(
        "the job moves to another plan on a, b, d, as d can take part: a step takes "
    )
    assert story.state.workers["c"].idle and job.recovery.failed == 0
    for worker in job.members:
        story.loaded(worker, attempt=2)
    assert job_of(story).state == RUNNING
    decisions = [fact for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(decisions) == durable(story.state)
    moves = [fact for fact in decisions if isinstance(fact, facts.JobMoves)]
    assert [one.at for one in moves] == [job.moved_at]


@pytest.mark.parametrize(
    ("answered", "words"),
    [
        ({"step_seconds": 0.95}, "it stays, because that is not at most 0.9 of it"),
        ({"current_seconds": None}, "no other plan was found: too little is known"),
    ],
)
def test_a_plan_that_does_not_pay_is_left_and_the_submitter_hears_why(
    answered: dict[str, float | None], words: str
) -> None:
    story = asked()
    said = considered(answer(story, "c", "b", "a", **answered))  # type: ignore[arg-type]
    assert not said.moves and words in said.words
    assert job_of(story).replanning.words == said.words
    assert job_of(story).replanning.proposal is None


def test_a_second_move_waits() -> None:
    story = moving("a", "b", "d")
    spread(story, MOVE)
    for worker in job_of(story).members:
        story.loaded(worker, attempt=2)
    for unit in range(MOVE + 1, MOVE + 8):
        story.all_ready(unit)
        if job_of(story).versions.under_way is not None:
            for share, owner in enumerate(job_of(story).members):
                story.copied(owner, unit, share)
                story.copied(job_of(story).holder_of(owner), unit, share)
    story.tick(1)
    assert "the last move was" in considered(answer(story, "a", "b", "c")).words


def test_the_same_plan_is_no_move() -> None:
    assert considered(answer(asked(), "a", "b", "c")).words == "the plan is still the best one"


def test_a_plan_without_protection_is_left() -> None:
    story = asked()
    story.join("e")  # without a disk
    assert not considered(answer(story, "a", "b", "e")).moves


@pytest.mark.parametrize("fault", ["new worker", "version", "time"])
def test_until_the_switch_a_move_ends_for_free(fault: str) -> None:
    story = moving("a", "b", "d")
    for worker in "abc":
        story.ready(worker, MOVE + 1)
    if fault == "new worker":
        story.leave("d")
        spread(story, MOVE)
    elif fault == "version":
        story.copied("b", MOVE, 1, trouble="the disk is full")
    else:
        story.tick(200)
    job = job_of(story)
    assert (job.state, job.attempt, job.next_unit) == (RUNNING, 1, MOVE + 2)
    assert "the job stays on its plan after all" in job.replanning.words
    decisions = [one for one in sent(story.commands, "a") if isinstance(one, Decide)]
    assert decisions[-1].unit == MOVE + 1


def test_a_new_worker_that_refuses_after_a_move_costs_no_step() -> None:
    story = moving("a", "b", "d")
    spread(story, MOVE)
    refused = Refused("job-1", 2, "compiled segments take 2 GB")
    story.feed(events.WorkerMessage(story.now, "d", refused))
    job = job_of(story)
    assert (job.state, job.next_unit, job.members) == (LOADING, MOVE + 1, ("a", "b", "c"))
    assert job.versions.stable is not None and "d" in job.unable


def test_a_lost_member_ends_a_move_and_is_replaced_at_once() -> None:
    story = moving("a", "b", "d")
    story.leave("c")
    job = job_of(story)
    assert job.state == LOADING and job.replanning.proposal is None
    assert "d" in job.members  # in the place of the lost one


def test_a_slow_worker_is_reported() -> None:
    story = place()
    for unit in range(FIRST, FIRST + 12):
        for worker in "abc":
            slow = worker == "b" and unit >= FIRST + 6
            story.ready(worker, unit, computing=3.0 if slow else 1.0)
        settle(story, unit)
    story.tick(1)
    assert asks(story)[-1].slow == {"b": 3.0}
    (said,) = considered(answer(story, "a", "b", "c")).slow
    assert said.startswith("b computes 3") and "3.0 times the 1" in said


def slowed(story: Scenario, first: int, **times: float) -> None:
    """Workers compute so many times as long for five steps."""
    for unit in range(first, first + LEAST_STEPS):
        for worker in "abc":
            story.ready(worker, unit, computing=times.get(worker, 1.0))
        settle(story, unit)


def computing() -> Scenario:
    """As `asked`, with a second of computing in each step of each worker."""
    story = place("d")
    slowed(story, FIRST)
    story.tick(1)
    assert asks(story)[-1].slow == {}
    return story


def test_a_plan_that_was_sought_before_a_worker_became_slow_does_not_count() -> None:
    """It gave a worker more work, "as b has become slow": the planner did not know that yet."""
    story = computing()
    slowed(story, MOVE, b=3.0)
    said = considered(answer(story, "b", "d"))
    assert not said.moves and said.words.endswith("which rests on their old speeds: it stays")
    assert job_of(story).replanning.proposal is None
    # The planner's own search may have been what made it slow: it is measured anew, and asked for once more.
    slowed(story, MOVE + LEAST_STEPS)
    story.tick(LEAST_CONSIDER_SECONDS)
    assert len(asks(story)) == 2 and asks(story)[-1].slow == {}
    slowed(story, MOVE + 2 * LEAST_STEPS, b=3.0)
    assert considered(answer(story, "b", "d")).words.endswith("old speeds: it stays")
    slowed(story, MOVE + 3 * LEAST_STEPS)
    story.tick(LEAST_CONSIDER_SECONDS)
    assert len(asks(story)) == 2  # not at once again: each search may slow it
    slowed(story, MOVE + 4 * LEAST_STEPS, b=3.0)
    story.tick(LEAST_CONSIDER_SECONDS)
    assert asks(story)[-1].slow == {"b": 3.0}
    assert considered(answer(story, "a", "c", "d")).moves


@pytest.mark.parametrize(("then", "cause"), [("acd", "as b has become slow and d"), ("bd", "as d can take")])
def test_a_slow_worker_is_the_cause_of_a_move_only_if_it_has_less_to_compute(then: str, cause: str) -> None:
    story = computing()
    answer(story, "a", "b", "c")
    slowed(story, MOVE, b=3.0)
    story.tick(LEAST_CONSIDER_SECONDS)
    assert asks(story)[-1].slow == {"b": 3.0}
    assert considered(answer(story, *then)).moves
    story.all_ready(MOVE + LEAST_STEPS)
    spread(story, MOVE + LEAST_STEPS)
    (back,) = [one for one in told(story.commands) if isinstance(one, RolledBack)]
    assert cause in back.reason


def moved(story: Scenario, *workers: str) -> None:
    """Worker b is three times as slow, so job-1 moves to these workers, and runs."""
    answer(story, "a", "b", "c")
    slowed(story, MOVE, b=3.0)
    story.tick(LEAST_CONSIDER_SECONDS)
    assert considered(answer(story, *workers)).moves
    for worker in "abc":
        story.ready(worker, MOVE + LEAST_STEPS, computing=3.0 if worker == "b" else 1.0)
    spread(story, MOVE + LEAST_STEPS)
    for worker in workers:
        story.loaded(worker, attempt=2)
    assert job_of(story).state == RUNNING


def steps_on(story: Scenario, workers: str, **times: float) -> None:
    """Five steps, in which these workers compute for a second, or for so many times as long."""
    first = job_of(story).next_unit
    for unit in range(first, first + LEAST_STEPS):
        for worker in workers:
            story.ready(worker, unit, computing=times.get(worker, 1.0))
        settle(story, unit)
    story.tick(LEAST_CONSIDER_SECONDS)


@pytest.mark.parametrize(
    ("now", "slow"), [(3.0, {"b": 3.0}), (2.0, {"b": 2.0}), (1.0, {}), (9.0, {"b": 3.0})]
)
def test_a_worker_that_is_still_slow_after_a_move_is_not_taken_for_fast(
    now: float, slow: dict[str, float]
) -> None:
    """What it took then counted as usual, and the next plan gave it the work back."""
    story = computing()
    moved(story, "c", "a", "b")
    steps_on(story, "cab", b=now)
    assert asks(story)[-1].slow == slow
    said = considered(answer(story, "c", "a", "b")).slow
    assert len(said) == len(slow) and all(one.startswith(f"b computes {now:g} s a step") for one in said)


def test_a_slow_worker_that_is_left_out_is_slow_to_the_planner_for_an_hour() -> None:
    story = computing()
    moved(story, "a", "c", "d")
    steps_on(story, "acd")
    assert "b" in asks(story)[-1].workers and asks(story)[-1].slow == {"b": 3.0}
    assert considered(answer(story, "a", "c", "d")).slow == []
    story.now += FORGET_SECONDS
    steps_on(story, "acd")
    assert asks(story)[-1].slow == {}
    assert considered(answer(story, "a", "b", "c")).moves  # it is tried again, and as slow as before
    unit = job_of(story).next_unit
    for worker in "acd":
        story.ready(worker, unit, computing=1.0)
    spread(story, unit)
    for worker in "abc":
        story.loaded(worker, attempt=3)
    steps_on(story, "abc", b=3.0)
    assert asks(story)[-1].slow == {"b": 3.0}


def test_a_job_that_is_planned_anew_after_a_fault_takes_a_slow_worker_for_slow() -> None:
    story = computing()
    moved(story, "a", "c", "d")
    for worker in "acd":
        story.leave(worker)
    for worker in "acd":
        story.join(worker)
    plans = [one for one in story.commands if type(one) is RunPlanner]
    assert len(plans) > 1 and plans[-1].slow == {"b": 3.0} and "b" in plans[-1].workers


def test_a_broker_that_is_restarted_forgets_a_move() -> None:
    story = moving("a", "b", "d")
    story.restart()
    assert job_of(story).replanning.proposal is None and job_of(story).state == RUNNING


def test_a_lost_worker_of_the_new_plan_does_not_end_the_job() -> None:
    story = moving("a", "b", "d")
    story.all_ready(MOVE + 1)
    spread(story, MOVE)
    lost = Broken("job-1", 2, "lost the link to worker d: it was killed", "d")
    story.feed(events.WorkerMessage(story.now, "a", lost))
    job = job_of(story)
    assert not job.over and job.next_unit == MOVE + 1

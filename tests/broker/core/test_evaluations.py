"""A job's first plan decides how many microbatches evaluations take, if its submitter leaves that open."""

from __future__ import annotations

import msgspec
from tests.broker.scenario import Scenario, told

from farflung.broker.core import events, facts
from farflung.broker.core.events import SendLoad
from farflung.broker.core.state import Outcome, replay
from farflung.broker.planning.messages import PlanResult
from farflung.plans import Placement, Plan, Wishes
from farflung.protocol.messages import Accepted, Planned, Return, UnitDone
from farflung.protocol.worker import SegmentProgram


def submitted(share: float) -> Scenario:
    story = Scenario()
    for name in ("a", "b"):
        story.join(name)
    story.submit(2, validation_microbatches=8, wishes=Wishes(validation_share=share))
    return story


def plan(story: Scenario, evaluated: int) -> Outcome:
    """The planner's answer, on one of the workers, by which evaluations take so many microbatches."""
    made = Plan([Placement(0, ["a"], 10, 4, 1)], [], 4, 2)
    program = SegmentProgram(0, b"program", {"weight-0": 4})
    result = PlanResult(made, [program], [["weight-0"]], None, validation_microbatches=evaluated)
    return story.feed(events.PlanMade(story.now, "job-1", story.state.jobs["job-1"].attempt, result))


def sent(outcome: Outcome) -> set[int]:
    """The microbatches of an evaluation by what workers and submitter hear."""
    loads = [one.load.training for one in outcome.commands if isinstance(one, SendLoad)]
    messages = [getattr(one, "message", None) for one in outcome.commands]
    heard = [one.validation_microbatches for one in messages if isinstance(one, Planned)]
    assert loads and heard
    return {*heard, *(training.validation_microbatches for training in loads)}


def test_workers_and_submitter_hear_of_fewer_microbatches_and_the_log_keeps_them() -> None:
    story = submitted(0.05)
    assert sent(plan(story, 2)) == {2}
    job = story.state.jobs["job-1"]
    evaluations = [unit.microbatches for unit in job.training.units() if unit.evaluates]
    assert set(evaluations) == {2} and job.wishes.validation_share == 0
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(facts.decode(record) for record in log).jobs["job-1"].training == job.training


def test_later_plans_change_nothing() -> None:
    story = submitted(0.05)
    plan(story, 2)
    story.leave("a")
    story.join("a")
    story.tick(1)
    assert story.state.jobs["job-1"].plan is None
    assert sent(plan(story, 1)) == {2}


def test_a_returned_submitter_hears_of_fewer_microbatches_before_what_it_has_missed() -> None:
    story = submitted(0.05)
    plan(story, 2)
    story.loaded("a")
    story.ready("a", 0)
    accepted, missed, *_ = told(story.say(Return("job-1", 0, 0)).commands)
    assert isinstance(accepted, Accepted) and accepted.validation_microbatches == 2
    assert isinstance(missed, UnitDone) and missed.unit == 0


def test_all_that_fits_is_evaluated_and_so_is_what_a_user_asks_for() -> None:
    assert sent(plan(submitted(0.05), 0)) == {8}
    assert sent(plan(submitted(0.0), 2)) == {8}


def test_an_older_log_has_no_share() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode({}), type=Wishes) == Wishes(validation_share=0.0)

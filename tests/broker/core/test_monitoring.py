"""Jobs whose evaluations decide when they end, and which weights come home."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.broker.scenario import Scenario, sent, told, training

from farflung.broker.core import facts, snapshots
from farflung.broker.core.records import COLLECTING, RUNNING, Job
from farflung.broker.core.state import durable, replay
from farflung.broker.core.training.monitoring import Finding, Monitoring
from farflung.protocol.messages import (
    Collecting,
    Decide,
    Denied,
    Ended,
    Keep,
    Kept,
    Return,
    SendState,
    Submit,
    UnitDone,
)
from farflung.runtime.monitoring import Monitor, Monitored

STOP = Monitor(patience=2)
BEST = Monitor(keeps=True)
EVALUATED = {"steps": 6, "validate_every": 1, "validation_microbatches": 1}
"""Units: an evaluation before each step and one at the end, so the evaluation of step s is unit 2s."""


def job_of(story: Scenario) -> Job:
    return story.state.jobs["job-1"]


def run_until(story: Scenario, losses: dict[int, float], kept: bool = True) -> list[UnitDone]:
    """Run all units that can be, with these losses of evaluations by step; copies are stored if `kept`."""
    before = len(story.commands)
    while job_of(story).state == RUNNING and (unit := job_of(story).unit) is not None:
        story.all_ready(unit.number, loss=1.0 if unit.train else losses.get(unit.step, 9.0) / 3)
        under_way = job_of(story).copies.under_way
        if under_way is not None and kept:
            story.say(Kept("job-1", job_of(story).attempt, under_way))
        elif job_of(story).unit == unit:
            break
    return [message for message in told(story.commands[before:]) if isinstance(message, UnitDone)]


def started(*monitors: Monitor, **changes: Any) -> Scenario:
    story = Scenario("a", "b")
    story.running(2, **{**EVALUATED, "monitors": monitors, **changes})
    return story


def test_a_job_ends_with_the_evaluation_that_wears_out_its_patience() -> None:
    story = started(STOP)
    done = run_until(story, {0: 1.0, 1: 5.0, 2: 3.0, 3: 3.0, 4: 4.0})
    assert [message.unit for message in done] == list(range(9))
    assert done[-1].monitored == [Monitored(3.0, 2, 2)] and done[0].monitored == [Monitored()]
    assert (job_of(story).state, job_of(story).step, job_of(story).unit) == (COLLECTING, 4, None)
    (collecting,) = [message for message in told(story.commands) if isinstance(message, Collecting)]
    assert (collecting.state, collecting.step) == ("done", 4)
    assert collecting.reason == "stopped early: loss has not fallen below 3, that of step 2, in 2 evaluations"
    assert collecting.monitored == [Monitored(3.0, 2, 2)]
    assert isinstance(sent(story.commands, "a")[-1], SendState)
    ended = story.collected()
    assert told(ended.commands) == [Ended("job-1", "done", collecting.reason)]
    assert replay(fact for fact in story.facts if isinstance(fact, facts.Decision)) == durable(story.state)


def test_the_best_weights_are_copied_and_no_others() -> None:
    story = started(BEST)
    done = run_until(story, {1: 5.0, 2: 6.0, 3: 4.0, 4: 4.0, 5: 4.5, 6: 4.25})
    assert [message.unit for message in done if message.keep] == [2, 6]
    decided = [message for message in sent(story.commands, "b") if isinstance(message, Decide)]
    assert [message.unit for message in decided if message.keep] == [2, 6]
    assert done[-1].monitored == [Monitored(4.0, 3, 3)] and job_of(story).copies.stable == 7


def test_the_last_weights_need_no_copy_to_be_the_best() -> None:
    story = started(BEST)
    done = run_until(story, {step: 7.0 - step for step in range(7)})
    assert [message.unit for message in done if message.keep] == [2, 4, 6, 8, 10]
    assert job_of(story).state == COLLECTING and done[-1].monitored == [Monitored(1.0, 6)]


def test_an_evaluation_waits_until_the_best_weights_can_be_copied() -> None:
    story = started(BEST)
    run_until(story, {1: 5.0, 2: 4.0}, kept=False)
    assert job_of(story).copies.under_way == 2 and job_of(story).unit is not None
    assert job_of(story).unit.number == 4  # type: ignore[union-attr]
    before = len(story.commands)
    story.say(Kept("job-1", 1, 2, stored=False))  # a run without checkpoints
    (done,) = [message for message in told(story.commands[before:]) if isinstance(message, UnitDone)]
    assert (done.unit, done.keep) == (4, True) and job_of(story).copies.stable == 0


def test_the_end_waits_for_the_copy_of_the_best_weights() -> None:
    story = started(BEST, steps=2)
    run_until(story, {1: 5.0, 2: 6.0}, kept=False)
    assert job_of(story).state == RUNNING and job_of(story).unit is not None
    story.say(Kept("job-1", 1, 2))
    assert job_of(story).state == COLLECTING


def test_copies_that_the_submitter_asks_for_are_made_as_ever() -> None:
    story = started(BEST)
    story.say(Keep("job-1", 1))
    done = run_until(story, {1: 5.0, 2: 6.0, 3: 4.0})
    assert [message.unit for message in done if message.keep] == [1, 2, 6]


def test_what_was_found_goes_back_with_the_job() -> None:
    story = started(STOP, BEST)
    run_until(story, {1: 5.0, 2: 6.0, 3: 4.0}, kept=False)  # the copy after unit 2 is under way
    assert job_of(story).monitoring.states == (Monitored(5.0, 1, 1),) * 2
    story.leave("b")
    job = job_of(story)
    assert job.unit is not None and (job.unit.number, job.monitoring.states) == (0, (Monitored(),) * 2)


def test_a_copy_that_is_lost_with_its_links_is_not_the_best_any_more() -> None:
    story = started(BEST)
    run_until(story, {1: 5.0, 2: 4.0, 3: 3.0}, kept=False)
    assert job_of(story).copies.under_way == 2
    story.say(Return("job-1", 0, job_of(story).next_unit))
    regrouped = job_of(story)
    assert regrouped.keeps and regrouped.copies.under_way is None
    assert regrouped.monitoring.states == (Monitored(),)


def test_a_copy_that_is_under_way_when_the_user_stops_is_not_the_best_any_more() -> None:
    story = started(BEST)
    run_until(story, {1: 5.0, 2: 4.0}, kept=False)
    assert job_of(story).copies.under_way == 2
    (collecting,) = [one for one in told(story.cancel(collect=True).commands) if isinstance(one, Collecting)]
    assert (collecting.step, collecting.monitored) == (2, [Monitored()])
    assert replay(fact for fact in story.facts if isinstance(fact, facts.Decision)) == durable(story.state)


def test_weights_that_are_collected_may_be_the_best_though_their_copy_is_under_way() -> None:
    story = started(BEST)
    for unit, loss in ((0, 9.0), (1, 1.0), (2, 5.0)):
        story.all_ready(unit, loss=loss / 3)
    assert job_of(story).copies.under_way == 2
    (collecting,) = [one for one in told(story.cancel(collect=True).commands) if isinstance(one, Collecting)]
    assert (collecting.step, collecting.monitored) == (1, [Monitored(5.0, 1)])


def test_few_findings_are_kept_of_a_job_whose_submitter_saves_nothing() -> None:
    story = started(BEST, steps=30)
    done = 0
    while job_of(story).state == RUNNING:
        unit = job_of(story).unit
        assert unit is not None
        story.all_ready(unit.number, loss=100.0 - unit.number)
        if (under_way := job_of(story).copies.under_way) is not None:
            story.say(Kept("job-1", 1, under_way, stored=False))
        assert len(job_of(story).monitoring.found) <= 3
        done += 1
    assert done == 61 and job_of(story).monitoring.states[0].step == 30


def test_what_had_been_found_before_any_unit_that_a_job_may_go_back_to_stays() -> None:
    kept = whole = Monitoring((Finding(-1, (Monitored(),)),))
    for unit in range(40):
        states = (Monitored(50.0 - unit, unit),)
        may_return = {9, unit - 1, unit} if unit > 9 else {0, unit}
        whole = replace(whole, found=(*whole.found, Finding(unit, states)))
        kept = kept.decided(unit, states, may_return)
        if unit > 9:
            for back in {9, unit - 1, unit}:
                assert kept.rolled_back(back).states == whole.rolled_back(back).states
    assert len(kept.found) <= 5


def test_a_resumed_job_knows_what_its_monitors_had_found() -> None:
    story = Scenario("a", "b")
    known = [Monitored(2.0, 3, 1)]
    story.running(2, **EVALUATED, monitors=(STOP,), unit=8, monitored=known)
    done = run_until(story, {4: 3.0})
    assert [message.unit for message in done] == [8] and done[0].monitored == [Monitored(2.0, 3, 2)]
    assert job_of(story).state == COLLECTING


def test_a_job_without_memory_for_copies_cannot_keep_its_best_weights() -> None:
    story = Scenario("a", "b")
    outcome = story.submit(2, **EVALUATED, monitors=(BEST,), copies=0)
    (denied,) = told(outcome.commands) or [command.message for command in outcome.commands]  # type: ignore[union-attr]
    assert isinstance(denied, Denied) and "no memory" in denied.reason


def test_findings_without_monitors_are_refused() -> None:
    with pytest.raises(ValueError, match="monitors"):
        Submit("gpt", b"graph", training(), 1, monitored=[Monitored()])


def test_a_snapshot_holds_what_was_found() -> None:
    story = started(STOP, BEST)
    run_until(story, {1: 5.0, 2: 6.0}, kept=False)
    kept = durable(story.state)
    body = snapshots.encode_snapshot(kept)
    assert body is not None and snapshots.decode_snapshot(body) == kept

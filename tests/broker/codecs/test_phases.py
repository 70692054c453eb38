"""A job whose rungs come in turn, as events in and messages out."""

from __future__ import annotations

import msgspec
import pytest
from tests.broker.scenario import Scenario, loads, plan_over, sent, told

from farflung.broker.core import events, facts
from farflung.broker.core.state import Outcome, durable, replay
from farflung.broker.planning.messages import PlanResult
from farflung.plans import LaterCodecs, LinkCodec
from farflung.protocol.messages import CodecsChosen, Decide
from farflung.protocol.worker import SegmentProgram

ROUGH = [LinkCodec("a", "b", "int4", 7.0), LinkCodec("b", "a", "int4", 7.0)]
GENTLE = [LinkCodec("a", "b", "int8", 4.0)]


class Phased(Scenario):
    """Two workers whose links are written rougher for two steps."""

    def planned(self, job: str = "job-1", attempt: int | None = None) -> Outcome:
        plan = msgspec.structs.replace(plan_over(["a", "b"]), codecs=ROUGH, later=[LaterCodecs(2, GENTLE)])
        programs = [SegmentProgram(part.segment, b"program") for part in plan.placements]
        return self.feed(events.PlanMade(self.now, job, 1, PlanResult(plan, programs, [["w"]] * 3, None)))


def test_all_workers_switch_at_one_step_and_the_log_says_why() -> None:
    scenario = Phased("a", "b")
    scenario.running(2, steps=4, validation_microbatches=1, validate_every=2)
    outcomes = []
    for number in range(7):
        scenario.ready("a", number)
        unit = scenario.state.jobs["job-1"].unit
        outcomes.append((unit, scenario.ready("b", number)))
    changed = []
    for unit, outcome in outcomes:
        a, b = ([m for m in sent(outcome.commands, worker) if isinstance(m, Decide)] for worker in ("a", "b"))
        assert a == b and len(a) == 1
        if a[0].codecs is not None:
            changed.append((unit, outcome, a[0]))
    ((unit, outcome, decide),) = changed
    assert unit is not None and unit.train and unit.step == 1
    assert decide.codecs == tuple(GENTLE)
    (logged,) = [fact for fact in outcome.decisions() if isinstance(fact, facts.CodecsDecided)]
    assert logged.unit == unit.number + 1 and facts.decode(facts.encode(logged)) == logged
    (chosen,) = [m for m in told(outcome.commands) if isinstance(m, CodecsChosen)]
    assert chosen.step == 2
    assert [(c.source, c.target, c.codec) for c in chosen.changes] == [
        ("a", "b", "int8"),
        ("b", "a", "dense"),
    ]
    assert {c.reason for c in chosen.changes} == {"as the job asks for from step 3 of 4 on"}


def test_a_replay_knows_what_links_are_written_by() -> None:
    scenario = Phased("a", "b")
    scenario.running(2, steps=4)
    for number in range(3):
        scenario.all_ready(number)
    assert scenario.state.jobs["job-1"].codecs == tuple(GENTLE)
    again = replay(fact for fact in scenario.facts if isinstance(fact, facts.Decision))
    assert again == durable(scenario.state)
    assert again.jobs["job-1"].codecs == tuple(GENTLE)


def test_a_replay_knows_the_codecs_that_were_decided_with_the_last_unit() -> None:
    scenario = Phased("a", "b")
    scenario.running(2, steps=4)
    for number, codecs in enumerate([None, tuple(GENTLE), None]):
        scenario.all_ready(number)
        again = replay(fact for fact in scenario.facts if isinstance(fact, facts.Decision))
        (decision,) = again.jobs["job-1"].decisions
        assert (decision.unit, decision.codecs) == (number, codecs)
        assert sent(scenario.commands, "a")[-1] == decision


@pytest.mark.parametrize(("step", "codecs"), [(1, ROUGH), (2, GENTLE), (3, GENTLE)])
def test_a_job_that_begins_later_begins_in_the_phase_of_its_step(step: int, codecs: list[LinkCodec]) -> None:
    scenario = Phased("a", "b")
    scenario.submit(2, steps=5, unit=step)
    plan = loads(scenario.planned())["a"].plan
    assert plan.codecs == codecs and scenario.state.jobs["job-1"].codecs == tuple(codecs)
    for worker in ("a", "b"):
        scenario.loaded(worker)
    for unit in range(step, 5):
        scenario.all_ready(unit)
    changed = [fact.unit for fact in scenario.facts if isinstance(fact, facts.CodecsDecided)]
    assert changed == ([2] if step == 1 else [])

"""A job whose codecs are chosen while it runs, as events in and messages out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.broker.scenario import Scenario, plan_over, sent, told

from farflung.broker.codecs.tuning_state import MOST_WAITING
from farflung.broker.core import events, facts
from farflung.broker.core.records import Job
from farflung.broker.core.state import Outcome, durable, replay
from farflung.broker.planning.messages import PlanResult
from farflung.broker.status import status_of
from farflung.planner.codecs.controller import PROBE_NOISE
from farflung.planner.codecs.limits import Limits
from farflung.planner.codecs.tuner import CodecTuner, tuning_basis
from farflung.plans import LinkCodec, Topology, WorkerSpec
from farflung.protocol.messages import CodecsChosen, Decide
from farflung.protocol.traffic import LinkRate
from farflung.protocol.worker import SegmentProgram
from farflung.simulator import Conditions

MEGABIT = 1e6 / 8

LIMITS = {"suspect_seconds": 3.0}


def network(mbps: float) -> Topology:
    rows = ((mbps, mbps), (mbps, mbps))
    workers = (WorkerSpec("a", "", 1e-6, 1.0), WorkerSpec("b", "", 1e-6, 1.0))
    return Topology(workers, ((0.0, 0.0), (0.0, 0.0)), rows)


class CodecTuningChanged(Scenario):
    """Two workers with a megabyte each way, planned for links of 100 Mbit/s."""

    def planned(self, job: str = "job-1", attempt: int | None = None) -> Outcome:
        plan = plan_over(["a", "b"])
        edges = [
            edge.__class__(edge.value, edge.source, edge.target, 10**6, edge.differentiable)
            for edge in plan.edges
        ]
        plan = plan.__class__(
            [part.__class__(part.segment, part.workers, 10**5, 4, 3) for part in plan.placements],
            edges,
            plan.microbatches,
            plan.window,
        )
        basis = tuning_basis(plan, network(100.0), Conditions(payload_share=1.0), Limits(0.05))
        programs = [SegmentProgram(part.segment, b"program") for part in plan.placements]
        result = PlanResult(plan, programs, [["w"]] * 3, None, steering=basis)
        return self.feed(events.PlanMade(self.now, job, self.state.jobs[job].attempt, result))

    def feed(self, event: events.Event) -> Outcome:
        """What is to be considered is, at once, and counts as a part of what came before."""
        outcome = super().feed(event)
        for command in outcome.commands:
            if isinstance(command, events.ConsiderCodecs):
                found = command.steering.on_units(command.units)
                later = events.CodecsConsidered(self.now, command.job, command.attempt, *found)
                assert not super().feed(later).commands
        return outcome

    def unit(self, number: int, mbps: float) -> Outcome:
        """Both workers are through with a unit, over links that carried so much."""
        for worker, other in (("a", "b"), ("b", "a")):
            ready = self.shares(worker, number)
            rates = [LinkRate(other, mbps * MEGABIT)]
            said = ready.__class__(
                ready.job, ready.attempt, ready.unit, ready.shares, ready.bytes_sent, rates=rates
            )
            outcome = self.feed(events.WorkerMessage(self.now, worker, said))
        return outcome


def steered() -> CodecTuningChanged:
    scenario = CodecTuningChanged("a", "b")
    scenario.running(2, steps=150)
    return scenario


def decisions(outcome: Outcome, worker: str) -> list[Decide]:
    return [message for message in sent(outcome.commands, worker) if isinstance(message, Decide)]


def chosen(outcomes: Sequence[Outcome]) -> list[CodecsChosen]:
    return [m for outcome in outcomes for m in told(outcome.commands) if isinstance(m, CodecsChosen)]


def test_links_as_planned_need_no_word() -> None:
    scenario = steered()
    outcomes = [scenario.unit(number, 100.0) for number in range(12)]
    assert chosen(outcomes) == []
    assert all(decide.codecs is None for o in outcomes for decide in decisions(o, "a"))


def test_a_change_goes_to_all_workers_with_one_decision_to_the_submitter_and_into_the_log() -> None:
    scenario = steered()
    outcomes = [scenario.unit(number, 2.0) for number in range(12)]
    (first, *_) = chosen(outcomes)
    at = first.unit - 1
    a, b = (decisions(outcomes[at], worker) for worker in ("a", "b"))
    assert a == b and a[0].unit == at and a[0].codecs
    logged = [fact for fact in outcomes[at].decisions() if isinstance(fact, facts.CodecsDecided)]
    assert len(logged) == 1 and tuple(logged[0].codecs) == a[0].codecs and logged[0].unit == first.unit
    assert facts.decode(facts.encode(logged[0])) == logged[0]
    assert "carries 2 Mbit/s, not 100 Mbit/s" in first.changes[0].reason
    assert {(one.source, one.target) for one in first.changes} <= {("a", "b"), ("b", "a")}


def test_a_replay_of_the_decisions_knows_how_links_are_written() -> None:
    scenario = steered()
    for number in range(12):
        scenario.unit(number, 2.0)
    job = scenario.state.jobs["job-1"]
    assert job.codecs and job.tuning is not None
    again = replay(fact for fact in scenario.facts if isinstance(fact, facts.Decision))
    assert again == durable(scenario.state)
    assert again.jobs["job-1"].codecs == job.codecs and again.jobs["job-1"].tuning is None


def test_a_replay_knows_where_the_initial_state_of_codec_tuning_is_kept() -> None:
    scenario = steered()
    again = replay(fact for fact in scenario.facts if isinstance(fact, facts.Decision))
    steering = again.jobs["job-1"].blobs.steering
    assert steering is not None
    assert CodecTuner.start(scenario.blobs[steering]).controller.levels == (0, 0)


def test_status_shows_the_codecs_of_a_job_that_runs() -> None:
    scenario = steered()
    for number in range(12):
        scenario.unit(number, 2.0)
    shown = status_of(scenario.state, {}, [], "1", 1.0, LIMITS, 0.0, 0.0).jobs[0]
    assert shown.codecs == list(scenario.state.jobs["job-1"].codecs)
    assert all(isinstance(one, LinkCodec) for one in shown.codecs)
    scenario.cancel(collect=False)
    assert status_of(scenario.state, {}, [], "1", 1.0, LIMITS, 0.0, 0.0).jobs[0].codecs == []
    assert scenario.state.jobs["job-1"].tuning is None


def test_a_loss_that_leaves_its_trend_after_a_rougher_codec_relaxes_it() -> None:
    scenario = steered()
    outcomes = []
    for number in range(90):
        worse = 1.5 if scenario.state.jobs["job-1"].codecs else 1.0
        for worker, other in (("a", "b"), ("b", "a")):
            ready = scenario.shares(worker, number, loss=worse / 3 * (number + 1) ** -0.2)
            mbps = 100.0 if number < 50 else 2.0
            said = ready.__class__(
                ready.job,
                ready.attempt,
                ready.unit,
                ready.shares,
                10,
                rates=[LinkRate(other, mbps * MEGABIT)],
            )
            outcomes.append(scenario.feed(events.WorkerMessage(scenario.now, worker, said)))
    reasons = [change.reason for message in chosen(outcomes) for change in message.changes]
    assert any("above its own trend" in reason for reason in reasons), reasons


def considerations(outcome: Outcome) -> list[events.ConsiderCodecs]:
    return [command for command in outcome.commands if isinstance(command, events.ConsiderCodecs)]


class Slow(CodecTuningChanged):
    """Its steering takes as long as the test says."""

    def feed(self, event: events.Event) -> Outcome:
        return Scenario.feed(self, event)

    def answer(self, asked: events.ConsiderCodecs) -> Outcome:
        found = asked.steering.on_units(asked.units)
        return self.feed(events.CodecsConsidered(self.now, asked.job, asked.attempt, *found))


def test_units_are_decided_while_a_choice_is_made_and_it_is_then_shown_all_of_them() -> None:
    scenario = Slow("a", "b")
    scenario.running(2, steps=150)
    (first,) = considerations(scenario.unit(0, 2.0))
    outcomes = [scenario.unit(number, 2.0) for number in range(1, 8)]
    assert all(len(decisions(outcome, "a")) == 1 for outcome in outcomes)
    assert not any(considerations(outcome) for outcome in outcomes)
    (second,) = considerations(scenario.answer(first))
    assert [over.unit for over in second.units] == list(range(1, 8))
    assert not scenario.answer(second).commands
    outcome = scenario.unit(8, 2.0)
    (found,) = chosen([outcome])
    assert found.unit == 9 and found.changes and decisions(outcome, "a")[0].codecs
    assert chosen([scenario.unit(9, 2.0)]) == []


def test_an_answer_for_a_job_that_is_over_or_of_another_attempt_changes_nothing() -> None:
    scenario = Slow("a", "b")
    scenario.running(2, steps=150)
    (asked,) = considerations(scenario.unit(0, 2.0))
    late = events.CodecsConsidered(scenario.now, "job-1", 9, *asked.steering.unchanged())
    assert not scenario.feed(late).facts
    scenario.cancel(collect=False)
    assert not scenario.answer(asked).facts


def test_slow_codec_tuning_examines_the_newest_units() -> None:
    scenario = Slow("a", "b")
    scenario.running(2, steps=150)
    (asked,) = considerations(scenario.unit(0, 2.0))
    for number in range(1, 100):
        scenario.unit(number, 2.0)
    (after,) = considerations(scenario.answer(asked))
    assert [over.unit for over in after.units] == list(range(100 - MOST_WAITING, 100))


class Stalled(CodecTuningChanged):
    """Its loss stands still while links write roughly."""

    fine = 0

    def unit(self, number: int, mbps: float) -> Outcome:
        job = self.state.jobs["job-1"]
        assert job.tuning is not None
        self.fine = self.fine + 1 if job.tuning.steering.controller.noise <= PROBE_NOISE else 0
        for worker, other in (("a", "b"), ("b", "a")):
            ready = self.shares(worker, number, loss=0.97**self.fine)
            rates = [LinkRate(other, mbps * MEGABIT)]
            said = ready.__class__(ready.job, ready.attempt, ready.unit, ready.shares, 10, rates=rates)
            outcome = self.feed(events.WorkerMessage(self.now, worker, said))
        return outcome

    def run(self, until: Callable[[Job], bool]) -> Job:
        """Decide units over slow lines until the job is so."""
        unit = self.state.jobs["job-1"].unit
        assert unit is not None
        for number in range(unit.number, unit.number + 130):
            self.unit(number, 0.2)
            if until(self.state.jobs["job-1"]):
                return self.state.jobs["job-1"]
        raise AssertionError("it never came to be so")

    def restart(self) -> Outcome:
        """The broker starts again, and reads what codec tuning begins from."""
        outcome = super().restart()
        (asked,) = [one for one in outcome.commands if isinstance(one, events.ReadTuning)]
        return self.feed(events.TuningRead(self.now, asked.job, asked.attempt, self.blobs[asked.steering]))


def stalled() -> Stalled:
    scenario = Stalled("a", "b")
    scenario.running(2, steps=400)
    return scenario


def test_what_a_stall_has_shown_is_stored_and_holds_after_a_restart() -> None:
    scenario = stalled()
    job = scenario.run(lambda job: job.findings.most_noise is not None)
    assert job.tuning is not None
    limits = job.tuning.steering.controller.limits
    assert limits.most_noise == job.findings.most_noise
    scenario.restart()
    again = scenario.state.jobs["job-1"]
    assert again.findings == job.findings and again.tuning is not None
    assert again.tuning.steering.controller.limits == limits


def test_what_a_stall_has_shown_holds_in_a_new_attempt_that_is_planned_anew() -> None:
    scenario = stalled()
    job = scenario.run(lambda job: job.findings.most_noise is not None)
    scenario.leave("b")
    scenario.join("b", boot="boot-2")
    scenario.planned()
    again = scenario.state.jobs["job-1"]
    assert again.attempt > job.attempt and again.findings == job.findings and again.tuning is not None
    assert again.tuning.steering.controller.limits.most_noise == job.findings.most_noise


def test_a_probe_under_way_at_a_restart_ends() -> None:
    scenario = stalled()
    scenario.run(lambda job: job.findings.probes)
    scenario.restart()
    job = scenario.state.jobs["job-1"]
    assert job.findings.probes and job.tuning is not None
    assert job.tuning.steering.controller.due == "a probe was cut short"

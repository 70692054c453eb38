"""The simulation finds bugs: each of these, planted in the real machines, soon breaks a law."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.simulation.broker import BrokerProcess
from tests.simulation.campaign import live
from tests.simulation.compute import Compute
from tests.simulation.submitter import SubmitterProcess
from tests.simulation.world import LawBroken

from farflung.broker import journal
from farflung.broker.core import facts, jobs, records, recovery, reducer, state
from farflung.broker.core.commit import CommitGroup
from farflung.broker.core.copies import Copies
from farflung.broker.core.events import Send
from farflung.broker.core.transition import Transition
from farflung.protocol.messages import Decide, RolledBack, SendState, Stop, UnitDone
from farflung.worker import state as worker

pytestmark = pytest.mark.faults

WORLDS = 100
Patch = pytest.MonkeyPatch
honest_step = worker.step


def _without(patch: Patch, message: type) -> None:
    """The broker forgets to send messages of one kind to one of the workers."""
    honest = Transition.do

    def do(self: Transition, command: Any) -> None:
        forgotten = isinstance(command, Send) and isinstance(command.message, message)
        if not (forgotten and command.worker == "worker-b"):
            honest(self, command)

    patch.setattr(Transition, "do", do)


def _reduces(patch: Patch, kind: type, wrong: Callable[[Any, Any, Any], Any]) -> None:
    """One kind of fact is applied wrongly: `wrong` gets it, and the state before and after it."""
    honest = reducer.reduce_fact

    def reduce_fact(before: Any, fact: Any) -> Any:
        after = honest(before, fact)
        return wrong(fact, before, after) if isinstance(fact, kind) else after

    for module in ("transition", "state", "reducer"):
        patch.setattr(f"farflung.broker.core.{module}.reduce_fact", reduce_fact)
    patch.setattr("tests.simulation.log_laws.reduce_fact", reduce_fact)


def decided_again(patch: Patch) -> None:
    """The broker does not go on to the next unit, so it decides a unit twice."""

    def wrong(fact: Any, before: Any, after: Any) -> Any:
        return after.with_job(replace(after.jobs[fact.job], unit=before.jobs[fact.job].unit))

    _reduces(patch, facts.UnitDecided, wrong)


def goes_on_after_a_restart(patch: Patch) -> None:
    """A broker that was restarted neither ends nor continues the jobs that ran."""
    honest = jobs.end

    def end(turn: Any, job: Any, how: str, reason: str) -> None:
        if not reason.startswith("the broker was restarted"):
            honest(turn, job, how, reason)

    patch.setattr(jobs, "end", end)


def forgets_the_decision(patch: Patch) -> None:
    """A fact is stored without a part of it."""
    honest = facts.encode

    def encode(fact: Any) -> bytes:
        return honest(
            msgspec.structs.replace(fact, keep=False) if isinstance(fact, facts.UnitDecided) else fact
        )

    patch.setattr(facts, "encode", encode)


def forgets_the_last_unit_at_a_restart(patch: Patch) -> None:
    """A broker that was restarted has not decided what it decided last, and would decide it again."""

    def replay(decisions: Iterable[Any], before: Any = None) -> Any:
        known = list(decisions)
        if known and isinstance(known[-1], facts.UnitDecided):
            known.pop()
        return state.replay(known, before)

    patch.setattr(journal, "replay", replay)


def acts_before_it_stores(patch: Patch) -> None:
    """Commands leave before their decisions are stored."""
    honest = BrokerProcess._store

    def store(self: Any, group: Any) -> None:
        self._act(group)
        if self.alive:
            group.actions = []
            honest(self, group)

    patch.setattr(BrokerProcess, "_store", store)


def forgets_stop(patch: Patch) -> None:
    """The end of a job does not reach a member."""
    _without(patch, Stop)


def forgets_decide(patch: Patch) -> None:
    """A decision does not reach a member."""
    _without(patch, Decide)


def forgets_send_state(patch: Patch) -> None:
    """A member is not asked for its state."""
    _without(patch, SendState)


def keeps_workers_of_ended_jobs(patch: Patch) -> None:
    """The workers of an ended job are not free again."""

    def wrong(fact: Any, before: Any, after: Any) -> Any:
        return replace(after, workers=before.workers)

    _reduces(patch, facts.JobEnded, wrong)


def two_copies_at_once(patch: Patch) -> None:
    """A copy begins while another one is under way."""
    patch.setattr(Copies, "takes", lambda self, unit: unit.train and self._is_due_after(unit))


def forgets_a_wish(patch: Patch) -> None:
    """A copy that is due while another one is under way is forgotten."""
    patch.setattr(Copies, "asked", lambda self: self)


def hides_a_copy(patch: Patch) -> None:
    """The submitter does not hear of a copy."""
    honest = Transition.tell

    def tell(self: Any, job: str, message: Any) -> None:
        if isinstance(message, UnitDone):
            message = msgspec.structs.replace(message, keep=False)
        honest(self, job, message)

    patch.setattr(Transition, "tell", tell)


def forgets_a_stored_copy(patch: Patch) -> None:
    """The broker waits for ever for a copy that the submitter has stored."""
    patch.setattr(jobs, "on_kept", lambda turn, job, message: None)


def begins_without_its_state(patch: Patch) -> None:
    """A worker says that it has loaded before its state is there."""
    _hears(
        patch,
        lambda before, event: (
            honest_step(replace(before, filled=True), event) if isinstance(event, worker.Verified) else None
        ),
    )


def passes_over_a_large_job(patch: Patch) -> None:
    """Small jobs begin although a larger one has waited longer."""
    patch.setattr(jobs, "_waits_for_ops_alone", lambda turn, job, needs: True)


def takes_any_plan(patch: Patch) -> None:
    """A plan for an attempt that is over is sent to workers."""
    patch.setattr(jobs, "is_planning", lambda job, attempt: not job.over)


def does_not_requeue(patch: Patch) -> None:
    """A job that loses a worker while it is planned is left as it is."""
    honest = recovery.give_up

    def give_up(turn: Any, job: Any, reason: str) -> None:
        if job.state != "planning":
            honest(turn, job, reason)

    patch.setattr(recovery, "give_up", give_up)


def ignores_lost_workers(patch: Patch) -> None:
    """A lost worker does not end its job."""

    def lose(turn: Any, name: str, reason: str) -> None:
        turn.emit(facts.WorkerLost(turn.now, name, reason))

    patch.setattr(state, "_lose", lose)


def forgets_reports(patch: Patch) -> None:
    """A report that is repeated after a lost connection counts as another one."""
    patch.setattr(CommitGroup, "holds", lambda self, name, ready: False)


def _hears(patch: Patch, wrong: Callable[[Any, Any], Any]) -> None:
    """A worker decides wrongly: `wrong` answers a state and an event, by None if rightly."""
    honest = worker.step

    def step(before: Any, event: Any) -> Any:
        return wrong(before, event) or honest(before, event)

    patch.setattr(worker, "step", step)


def applies_a_repeated_decision(patch: Patch) -> None:
    """A worker applies each decision that it hears."""

    def wrong(before: Any, event: Any) -> Any:
        said = getattr(event, "message", None)
        if (
            isinstance(said, Decide)
            and before.attempt == (said.job, said.attempt)
            and said.unit < before.unit
        ):
            return before, [worker.Apply(said.unit, said.scale, said.codecs)]
        return None

    _hears(patch, wrong)


def obeys_an_attempt_that_is_over(patch: Patch) -> None:
    """A worker stops its job because an earlier one was stopped."""

    def wrong(before: Any, event: Any) -> Any:
        if isinstance(getattr(event, "message", None), Stop) and before.load is not None:
            return worker.State(before.worker), [worker.Drop("stopped")]
        return None

    _hears(patch, wrong)


def keeps_its_job_without_a_broker(patch: Patch) -> None:
    """A worker that lost its session keeps the job that the broker has given up."""
    _hears(patch, lambda before, event: (before, []) if isinstance(event, worker.BrokerLost) else None)


def hides_a_lost_link(patch: Patch) -> None:
    """A worker does not say that it lost a neighbour."""
    _hears(patch, lambda before, event: (before, []) if isinstance(event, worker.PeerLost) else None)


def copies_before_it_applies(patch: Patch) -> None:
    """A worker copies the state from before the step."""
    honest = worker.step

    def step(before: Any, event: Any) -> Any:
        after, commands = honest(before, event)
        return after, sorted(commands, key=lambda one: not isinstance(one, worker.KeepState))

    patch.setattr(worker, "step", step)


def forgets_stop_to_survivors(patch: Patch) -> None:
    """The workers that are left do not hear that the attempt is over."""
    honest = Transition.do

    def do(self: Transition, command: Any) -> None:
        message = getattr(command, "message", None)
        if not (isinstance(message, Stop) and not self.state.jobs[message.job].over):
            honest(self, command)

    patch.setattr(Transition, "do", do)


def does_not_say_that_it_went_back(patch: Patch) -> None:
    """The submitter does not hear that the attempt is over."""
    honest = Transition.tell

    def tell(self: Any, job: str, message: Any) -> None:
        if not isinstance(message, RolledBack):
            honest(self, job, message)

    patch.setattr(Transition, "tell", tell)


def goes_back_to_a_copy_that_could_not_be_stored(patch: Patch) -> None:
    """A copy counts although the submitter could not store it."""
    patch.setattr(Copies, "failed", lambda self: replace(self, under_way=None, stable=self.under_way + 1))


def goes_back_to_a_copy_under_way(patch: Patch) -> None:
    """A copy counts before the submitter has stored it."""
    honest = Copies.decided

    def decided(self: Copies, unit: Any, keep: bool) -> Copies:
        after = honest(self, unit, keep)
        return replace(after, stable=unit.number + 1) if keep else after

    patch.setattr(Copies, "decided", decided)


def takes_a_copy_of_an_old_attempt(patch: Patch) -> None:
    """A copy counts although its attempt is over."""

    def on_kept(turn: Any, job: Any, message: Any) -> None:
        turn.emit(facts.CopyStored(turn.now, job.job, message.unit, message.stored))

    patch.setattr(jobs, "on_kept", on_kept)


def waits_for_a_copy_of_an_old_attempt(patch: Patch) -> None:
    """A copy stays under way although its attempt is over."""
    patch.setattr(Copies, "interrupted", lambda self: self)


def keeps_decisions_of_an_old_attempt(patch: Patch) -> None:
    """The next attempt is answered with decisions of the last one."""
    _rolls_back(patch, lambda before: {"decisions": before.decisions})

    def decision_of(self: records.Job, unit: int) -> Any:
        return next((one for one in self.decisions if one.unit == unit), None)

    patch.setattr(records.Job, "decision_of", decision_of)


def does_not_go_back(patch: Patch) -> None:
    """The next attempt begins where the last one was."""
    _rolls_back(patch, lambda before: {"unit": before.unit or before.training.units().at(0)})


def does_not_clear_members(patch: Patch) -> None:
    """A job that is queued again still has members."""
    _rolls_back(patch, lambda before: {"members": before.members})


def keeps_workers_of_an_old_attempt(patch: Patch) -> None:
    """The workers of an attempt that is over are not free again."""
    _reduces(patch, facts.JobRolledBack, lambda fact, before, after: replace(after, workers=before.workers))


def keeps_shares_of_an_old_attempt(patch: Patch) -> None:
    """The shares of an attempt that is over count in the next one."""
    _rolls_back(patch, lambda before: {"group": before.group})

    def planning(fact: Any, before: Any, after: Any) -> Any:
        return after.with_job(replace(after.jobs[fact.job], group=before.jobs[fact.job].group))

    _reduces(patch, facts.JobPlanning, planning)


def counts_no_fruitless_attempts(patch: Patch) -> None:
    """A job may fail in the same way for ever."""
    honest = reducer._after_attempt
    patch.setattr(reducer, "_after_attempt", lambda job, fact: replace(honest(job, fact), fruitless=0))


def counts_fruitful_attempts(patch: Patch) -> None:
    """Attempts that get further count as fruitless, too."""
    patch.setattr(recovery, "_got_further", lambda job: False)
    honest = reducer._after_attempt

    def after_attempt(job: Any, fact: Any) -> Any:
        return replace(honest(job, fact), fruitless=job.recovery.fruitless + 1)

    patch.setattr(reducer, "_after_attempt", after_attempt)


def ends_a_job_that_lost_a_worker_twice(patch: Patch) -> None:
    """A job ends although it could go on."""
    patch.setattr(recovery, "MOST_FRUITLESS", 2)


def goes_back_after_a_stop(patch: Patch) -> None:
    """A job that its user has stopped begins again when a worker is lost."""
    honest = recovery.give_up

    def give_up(turn: Any, job: Any, reason: str) -> None:
        if job.state == "collecting":
            recovery._roll_back(turn, job, reason)
        else:
            honest(turn, job, reason)

    patch.setattr(recovery, "give_up", give_up)


def forgets_that_an_attempt_was_over(patch: Patch) -> None:
    """A state that came home just before its attempt was given up counts for nothing."""
    honest = reducer._after_attempt
    patch.setattr(reducer, "_after_attempt", lambda job, fact: replace(honest(job, fact), over=0))


def names_the_wrong_workers(patch: Patch) -> None:
    """A job that does not fit on some workers waits although others come."""

    def wrong(fact: Any, before: Any, after: Any) -> Any:
        job = after.jobs[fact.job]
        known = tuple(after.workers) if fact.unfit else ()
        return after.with_job(replace(job, recovery=replace(job.recovery, unfit=known)))

    _reduces(patch, facts.JobRequeued, wrong)


def feeds_an_old_attempt(patch: Patch) -> None:
    """A submitter goes on feeding an attempt that is over."""
    honest = SubmitterProcess._roll_back

    def roll_back(self: Any, run: Any, message: Any) -> None:
        attempt = run.attempt
        honest(self, run, message)
        attempt.fed = -1
        self.after(0.1, lambda: self._feed(attempt, attempt.next_unit) if self.run is run else None)

    patch.setattr(SubmitterProcess, "_roll_back", roll_back)


def begins_with_a_newer_state(patch: Patch) -> None:
    """A submitter begins with its newest state instead of the one that it is asked for."""
    honest = SubmitterProcess._roll_back

    def roll_back(self: Any, run: Any, message: Any) -> None:
        honest(self, run, message)
        run.start = run.project.checkpoints.get(run.project.unit, run.start)

    patch.setattr(SubmitterProcess, "_roll_back", roll_back)


def begins_again_with_the_state_it_holds(patch: Patch) -> None:
    """A worker that survives uses what it has computed instead of the state that is sent."""
    honest = Compute._fill

    def fill(self: Any, state: Any) -> None:
        honest(self, state)
        self.chain = getattr(self, "kept", {}).get(self.attempt[0], self.chain)

    def reset(self: Any) -> None:
        if getattr(self, "chain", ()):
            self.kept = {self.attempt[0]: self.chain}
        honest_reset(self)

    honest_reset = Compute._reset
    patch.setattr(Compute, "_reset", reset)
    patch.setattr(Compute, "_fill", fill)


def forgets_failures_in_a_snapshot(patch: Patch) -> None:
    """A log snapshot does not hold what failures have cost a job."""
    honest = journal.decode_snapshot

    def decode_snapshot(body: bytes) -> Any:
        found = honest(body)
        forgotten = {name: replace(job, recovery=records.Recovery()) for name, job in found.jobs.items()}
        return replace(found, jobs=forgotten)

    patch.setattr(journal, "decode_snapshot", decode_snapshot)


def _rolls_back(patch: Patch, wrong: Callable[[records.Job], dict[str, Any]]) -> None:
    """A rollback leaves some fields of a job as `wrong` says."""
    _reduces(
        patch,
        facts.JobRolledBack,
        lambda fact, before, after: after.with_job(
            replace(after.jobs[fact.job], **wrong(before.jobs[fact.job]))
        ),
    )


BUGS = [
    decided_again,
    goes_on_after_a_restart,
    forgets_the_decision,
    forgets_the_last_unit_at_a_restart,
    acts_before_it_stores,
    forgets_stop,
    forgets_decide,
    forgets_send_state,
    keeps_workers_of_ended_jobs,
    two_copies_at_once,
    forgets_a_wish,
    hides_a_copy,
    forgets_a_stored_copy,
    begins_without_its_state,
    passes_over_a_large_job,
    takes_any_plan,
    does_not_requeue,
    ignores_lost_workers,
    forgets_reports,
    applies_a_repeated_decision,
    obeys_an_attempt_that_is_over,
    keeps_its_job_without_a_broker,
    hides_a_lost_link,
    copies_before_it_applies,
    forgets_stop_to_survivors,
    does_not_say_that_it_went_back,
    goes_back_to_a_copy_that_could_not_be_stored,
    goes_back_to_a_copy_under_way,
    takes_a_copy_of_an_old_attempt,
    waits_for_a_copy_of_an_old_attempt,
    keeps_decisions_of_an_old_attempt,
    does_not_go_back,
    does_not_clear_members,
    keeps_workers_of_an_old_attempt,
    keeps_shares_of_an_old_attempt,
    counts_no_fruitless_attempts,
    counts_fruitful_attempts,
    ends_a_job_that_lost_a_worker_twice,
    goes_back_after_a_stop,
    forgets_that_an_attempt_was_over,
    names_the_wrong_workers,
    feeds_an_old_attempt,
    begins_with_a_newer_state,
    begins_again_with_the_state_it_holds,
    forgets_failures_in_a_snapshot,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    with pytest.raises(LawBroken):
        for seed in range(WORLDS):
            live(seed)

"""The simulation finds bugs: each of these, planted in the real machines, soon breaks a law."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.simulation.broker import BrokerProcess
from tests.simulation.campaign import live
from tests.simulation.planting import HONEST_STEP, Patch, hears, only, reduces, without
from tests.simulation.recovery_bugs import RECOVERY_BUGS
from tests.simulation.replay_bugs import REPLAY_BUGS
from tests.simulation.return_bugs import RETURN_BUGS
from tests.simulation.standby_bugs import STANDBY_BUGS
from tests.simulation.world import LawBroken

from farflung.broker import journal
from farflung.broker.core import facts, state
from farflung.broker.core.recovering import recovery, returns
from farflung.broker.core.training import job_queue, jobs
from farflung.broker.core.training.commit import CommitGroup
from farflung.broker.core.training.copies import Copies
from farflung.broker.core.transition import Transition
from farflung.broker.core.trusting import removing
from farflung.protocol.messages import Decide, SendState, Stop, UnitDone
from farflung.worker import events
from farflung.worker import state as worker
from farflung.worker.records import State

pytestmark = pytest.mark.faults

WORLDS = 150


def decided_again(patch: Patch) -> None:
    """The broker does not go on to the next unit, so it decides a unit twice."""

    def wrong(fact: Any, before: Any, after: Any) -> Any:
        return after.with_job(replace(after.jobs[fact.job], unit=before.jobs[fact.job].unit))

    reduces(patch, facts.UnitDecided, wrong)


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
    without(patch, Stop)


def forgets_decide(patch: Patch) -> None:
    """A decision does not reach a member."""
    without(patch, Decide)


def forgets_send_state(patch: Patch) -> None:
    """A member is not asked for its state."""
    without(patch, SendState)


def keeps_workers_of_ended_jobs(patch: Patch) -> None:
    """The workers of an ended job are not free again."""

    def wrong(fact: Any, before: Any, after: Any) -> Any:
        return replace(after, workers=before.workers)

    reduces(patch, facts.JobEnded, wrong)


def two_copies_at_once(patch: Patch) -> None:
    """A copy begins while another one is under way."""
    patch.setattr(Copies, "takes", lambda self, units, unit, _: unit.train and self._is_due_after(unit))


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
    hears(
        patch,
        lambda before, event: (
            HONEST_STEP(replace(before, filled=True), event) if isinstance(event, events.Verified) else None
        ),
    )


def passes_over_a_large_job(patch: Patch) -> None:
    """Small jobs begin although a larger one has waited longer."""
    patch.setattr(job_queue, "_waits_for_ops_alone", lambda turn, job, needs: True)


def waits_without_end(patch: Patch) -> None:
    """A job that lost its workers waits although its patience is over."""
    only(patch, "lose")

    def wait(turn: Any, job: Any, words: str, lacking: bool = False, missing: int = 0) -> Any:
        job_queue._explain(turn, job, words, lacking, missing)
        return job

    patch.setattr(job_queue, "_wait", wait)


def takes_any_plan(patch: Patch) -> None:
    """A plan for an attempt that is over is sent to workers."""
    patch.setattr(jobs, "is_planning", lambda job, attempt: not job.over)


def sends_a_plan_of_a_job_that_waits_again(patch: Patch) -> None:
    """A plan is sent although its attempt ended when it was stored."""
    patch.setattr(
        "tests.simulation.broker.is_loading", lambda job, attempt: not job.over and job.attempt == attempt
    )


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

    patch.setattr(returns, "lose", lose)


def forgets_reports(patch: Patch) -> None:
    """A report that is repeated after a lost connection counts as another one."""
    only(patch, "reset")
    patch.setattr(CommitGroup, "holds", lambda self, name, ready: False)


def applies_a_repeated_decision(patch: Patch) -> None:
    """A worker applies each decision that it hears."""

    def wrong(before: Any, event: Any) -> Any:
        said = getattr(event, "message", None)
        if (
            isinstance(said, Decide)
            and before.attempt == (said.job, said.attempt)
            and said.unit < before.unit
        ):
            return before, [events.Apply(said.unit, said.scale, said.codecs)]
        return None

    hears(patch, wrong)


def obeys_an_attempt_that_is_over(patch: Patch) -> None:
    """A worker stops its job because an earlier one was stopped."""
    only(patch, "echo")

    def wrong(before: Any, event: Any) -> Any:
        if isinstance(getattr(event, "message", None), Stop) and before.load is not None:
            return State(before.worker), [events.Drop("stopped")]
        return None

    hears(patch, wrong)


def hides_a_lost_link(patch: Patch) -> None:
    """A worker does not say that it lost a neighbour."""
    only(patch, "sever")
    hears(patch, lambda before, event: (before, []) if isinstance(event, events.PeerLost) else None)


def copies_before_it_applies(patch: Patch) -> None:
    """A worker copies the state from before the step."""
    honest = worker.step

    def step(before: Any, event: Any) -> Any:
        after, commands = honest(before, event)
        return after, sorted(commands, key=lambda one: not isinstance(one, events.CopyState))

    patch.setattr(worker, "step", step)


def lets_removed_workers_in(patch: Patch) -> None:
    """A worker that an operator has removed registers again."""
    only(patch, "remove", "kill")
    patch.setattr(removing, "refuses", lambda turn, event: False)


BUGS = [
    lets_removed_workers_in,
    decided_again,
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
    waits_without_end,
    takes_any_plan,
    sends_a_plan_of_a_job_that_waits_again,
    does_not_requeue,
    ignores_lost_workers,
    forgets_reports,
    applies_a_repeated_decision,
    obeys_an_attempt_that_is_over,
    hides_a_lost_link,
    copies_before_it_applies,
    *RECOVERY_BUGS,
    *REPLAY_BUGS,
    *RETURN_BUGS,
    *STANDBY_BUGS,
]


@pytest.mark.cases(12)
@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    with pytest.raises(LawBroken):
        for seed in range(WORLDS):
            live(seed)

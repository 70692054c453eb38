"""Bugs to plant in what happens when an attempt of a job fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.simulation.compute import Compute
from tests.simulation.planting import Patch, only, reduces
from tests.simulation.submitter import SubmitterProcess

from farflung.broker import journal
from farflung.broker.core import facts, records
from farflung.broker.core.protecting import protection
from farflung.broker.core.protecting.versions import Version
from farflung.broker.core.recovering import recovery, recutting
from farflung.broker.core.reducing import attempt_reducer
from farflung.broker.core.training import jobs
from farflung.broker.core.training.copies import Copies
from farflung.broker.core.transition import Transition
from farflung.protocol.messages import RolledBack, Stop


def rolls_back(patch: Patch, wrong: Callable[[records.Job], dict[str, Any]]) -> None:
    """A rollback leaves some fields of a job as `wrong` says."""
    reduces(
        patch,
        facts.JobRolledBack,
        lambda fact, before, after: after.with_job(
            replace(after.jobs[fact.job], **wrong(before.jobs[fact.job]))
        ),
    )


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


def ends_a_job_whose_workers_do_not_link_up_at_first(patch: Patch) -> None:
    """A job ends at once if two workers lose their link before it ran."""
    patch.setattr(recovery, "MOST_UNLINKED", 1)
    only(patch, "sever", "cut", "freeze", "flap")


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
    rolls_back(patch, lambda before: {"decisions": before.decisions})

    def decision_of(self: records.Job, unit: int) -> Any:
        return next((one for one in self.decisions if one.unit == unit), None)

    patch.setattr(records.Job, "decision_of", decision_of)


def does_not_go_back(patch: Patch) -> None:
    """The next attempt begins where the last one was."""
    rolls_back(patch, lambda before: {"unit": before.unit or before.training.units().at(0)})


def does_not_clear_members(patch: Patch) -> None:
    """A job that is queued again still has members."""
    rolls_back(patch, lambda before: {"members": before.members})


def keeps_workers_of_an_old_attempt(patch: Patch) -> None:
    """The workers of an attempt that is over are not free again."""
    reduces(patch, facts.JobRolledBack, lambda fact, before, after: replace(after, workers=before.workers))


def keeps_shares_of_an_old_attempt(patch: Patch) -> None:
    """The shares of an attempt that is over count in the next one."""
    only(patch, "kill")
    rolls_back(patch, lambda before: {"group": before.group})

    def planning(fact: Any, before: Any, after: Any) -> Any:
        return after.with_job(replace(after.jobs[fact.job], group=before.jobs[fact.job].group))

    reduces(patch, facts.JobPlanning, planning)


def counts_no_fruitless_attempts(patch: Patch) -> None:
    """A job may fail in the same way for ever."""
    honest = attempt_reducer._after_attempt
    patch.setattr(
        attempt_reducer, "_after_attempt", lambda job, fact: replace(honest(job, fact), fruitless=0)
    )


def counts_fruitful_attempts(patch: Patch) -> None:
    """Attempts that get further count as fruitless, too."""
    only(patch, "kill", "flap")
    patch.setattr(recovery, "_got_further", lambda job: False)
    honest = attempt_reducer._after_attempt

    def after_attempt(job: Any, fact: Any) -> Any:
        return replace(honest(job, fact), fruitless=job.recovery.fruitless + 1)

    patch.setattr(attempt_reducer, "_after_attempt", after_attempt)


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
    honest = attempt_reducer._after_attempt
    patch.setattr(attempt_reducer, "_after_attempt", lambda job, fact: replace(honest(job, fact), over=0))


def names_the_wrong_workers(patch: Patch) -> None:
    """A job that does not fit on some workers waits although others come."""
    only(patch, "refuse", "leave")

    def wrong(fact: Any, before: Any, after: Any) -> Any:
        job = after.jobs[fact.job]
        known = tuple(after.workers) if fact.unfit else ()
        return after.with_job(replace(job, recovery=replace(job.recovery, unfit=known)))

    reduces(patch, facts.JobRequeued, wrong)


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


def counts_a_version_before_holders_have_it(patch: Patch) -> None:
    """A version is stable although only the owners of its shares have copies."""

    def complete(state: Any, job: Any, version: Any, plan: Any) -> dict[int, Any]:
        shares = protection.shares_of(plan)
        mine = {
            share: protection.copy_of(state.workers[owner], job, version, share)
            for share, owner in shares.items()
        }
        return mine if all(mine.values()) else {}

    patch.setattr(protection, "complete", complete)


def begins_one_unit_before_its_version(patch: Patch) -> None:
    """A job that goes back to a version runs the version's own unit again."""
    patch.setattr(Version, "next_unit", property(lambda self: self.name.unit))


def reads_too_few_shares(patch: Patch) -> None:
    """A job that goes on in another cut does not read one of the shares that it needs."""
    honest = recutting.sources

    def sources(*arguments: Any) -> Any:
        found = honest(*arguments)
        return found and {member: dict([*read.items()][:1]) for member, read in found.items()}

    patch.setattr(recutting, "sources", sources)


RECOVERY_BUGS = [
    ends_a_job_whose_workers_do_not_link_up_at_first,
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
    counts_a_version_before_holders_have_it,
    begins_one_unit_before_its_version,
]

"""Turn facts into lines of the broker's log."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch

from farflung.broker.core import facts
from farflung.plans.rates import tflops_text
from farflung.protocol.fields import has_left, one_line
from farflung.text import and_more, count_of, format_seconds


@singledispatch
def log_line(fact: object) -> str:
    """One line that describes `fact`; empty if the fact is too frequent to log."""
    return ""


@log_line.register
def _describe_worker_admitted(fact: facts.WorkerAdmitted) -> str:
    where = f"{fact.device.name}, site {fact.site or 'unknown'}"
    if fact.returns:
        return f"worker {fact.worker} returned to its job ({where})"
    return f"worker {fact.worker} joined the backup pool ({where})"


@log_line.register
def _describe_worker_away(fact: facts.WorkerAway) -> str:
    return f"worker {fact.worker} is away: {fact.reason}"


@log_line.register
def _describe_worker_leaving(fact: facts.WorkerLeaving) -> str:
    within = format_seconds(max(0.0, fact.deadline - fact.at))
    return f"worker {fact.worker} is to leave within {within}: {fact.reason}"


@log_line.register
def _describe_worker_released(fact: facts.WorkerReleased) -> str:
    return f"worker {fact.worker} may go: {fact.reason}"


@log_line.register
def _describe_member_removed(fact: facts.MemberRemoved) -> str:
    because = _because(fact.reason)
    return f"{fact.role} {fact.member} was removed by operator {fact.operator}{because}"


@log_line.register
def _describe_member_allowed(fact: facts.MemberAllowed) -> str:
    return f"{fact.member} is allowed again by operator {fact.operator}"


@log_line.register
def _describe_worker_blamed(fact: facts.WorkerBlamed) -> str:
    return f"{fact.job} goes on without {fact.worker}, which made it fail at unit {fact.unit}: {fact.reason}"


@log_line.register
def _describe_worker_suspected(fact: facts.WorkerSuspected) -> str:
    if fact.proven:
        return f"worker {fact.worker} is suspended: {fact.reason}"
    return f"worker {fact.worker} is suspected, as {fact.job} got on without it: {fact.reason}"


@log_line.register
def _describe_submitter_away(fact: facts.SubmitterAway) -> str:
    return f"{fact.job} is held for its submitter, who is away: {fact.reason}"


@log_line.register
def _describe_submitter_returned(fact: facts.SubmitterReturned) -> str:
    return f"the submitter of {fact.job} is back"


@log_line.register
def _describe_worker_moved(fact: facts.WorkerMoved) -> str:
    return one_line(f"worker {fact.worker} moved to {', '.join([*fact.addresses, *fact.claims])}")


@log_line.register
def _describe_worker_measured(fact: facts.WorkerMeasured) -> str:
    return f"worker {fact.worker} sustains {tflops_text(fact.tflops, fact.rates)} TFLOP/s, measured again"


@log_line.register
def _describe_worker_lost(fact: facts.WorkerLost) -> str:
    if has_left(fact.worker, fact.reason):
        return f"worker {fact.worker} left"
    return f"worker {fact.worker} was lost: {fact.reason}"


@log_line.register
def _describe_job_submitted(fact: facts.JobSubmitted) -> str:
    wanted = ", ".join(fact.on) or (f"{fact.workers} workers" if fact.workers else "every idle worker")
    return f"{fact.job} ({fact.name}) was submitted by {fact.submitter} for {wanted}"


@log_line.register
def _describe_wait_explained(fact: facts.WaitExplained) -> str:
    return f"{fact.job}: {fact.words}" if fact.words else f"{fact.job} waits no longer"


@log_line.register
def _describe_job_planning(fact: facts.JobPlanning) -> str:
    return f"{fact.job} is being planned on {', '.join(fact.workers)} (attempt {fact.attempt})"


@log_line.register
def _describe_job_requeued(fact: facts.JobRequeued) -> str:
    lacking = "; ".join(f"{worker} cannot run it: {why}" for worker, why in fact.unable.items())
    return f"{fact.job} went back to the queue{_because(fact.reason or lacking)}"


@log_line.register
def _describe_job_rolled_back(fact: facts.JobRolledBack) -> str:
    return f"{fact.job} goes back to unit {fact.unit}: {fact.reason}"


@log_line.register
def _describe_job_restoring(fact: facts.JobRestoring) -> str:
    return (
        f"{fact.job} loads copies of its state on {', '.join(fact.plan.workers())} (attempt {fact.attempt})"
    )


@log_line.register
def _describe_replanning(fact: facts.ReplanningChanged) -> str:
    return f"{fact.job}: {fact.replanning.words}" if not fact.replanning.is_busy else ""


@log_line.register
def _describe_plan_given_up(fact: facts.PlanGivenUp) -> str:
    return f"{fact.job} may go on from its newest copies on other workers: {fact.reason}"


@log_line.register
def _describe_version_given_up(fact: facts.VersionGivenUp) -> str:
    return f"{fact.job} begins again at unit {fact.unit}: {fact.reason}"


@log_line.register
def _describe_job_regrouped(fact: facts.JobRegrouped) -> str:
    if fact.awaited:
        names = ", ".join(fact.awaited)
        return f"{fact.job} waits for {names}, and its other workers keep their state: {fact.reason}"
    return f"{fact.job} goes on with the state that its workers hold (attempt {fact.attempt}): {fact.reason}"


@log_line.register
def _describe_job_replaying(fact: facts.JobReplaying) -> str:
    names = ", ".join(fact.replayers)
    donors = sorted({donor for taker, donor in fact.donors.items() if taker in fact.replayers})
    share = f"copies of {', '.join(donors)}" if donors else "own copies"
    return (
        f"past units of {fact.job} run again on {names} alone, from {share}"
        f" (attempt {fact.attempt}): {fact.reason}"
    )


@log_line.register
def _describe_job_mended(fact: facts.JobMended) -> str:
    seats = fact.plan.seats()
    given = [f"{name} gets its state from {by}" for name, by in _given(fact.donors, seats)]
    left = count_of(len(fact.plan.live_pipelines()), "replica")
    how = f"with {left}{''.join(f', {one}' for one in given)}"
    return f"{fact.job} goes on {how} (attempt {fact.attempt}): {fact.reason}"


def _given(donors: Mapping[int, int], seats: Mapping[int, str]) -> list[tuple[str, str]]:
    """Who gets state, and from whom."""
    by = {seats[taker]: seats[donor] for taker, donor in donors.items()}
    return sorted(by.items())


@log_line.register
def _describe_standbys_changed(fact: facts.StandbysChanged) -> str:
    by = [f"{standby} for {owner}" for owner, standby in sorted(fact.standbys.items())]
    return f"{fact.job}: {and_more(by, 8)} stand by" if by else f"{fact.job}: no one stands by"


@log_line.register
def _describe_job_loading(fact: facts.JobLoading) -> str:
    copies = ", from copies of its state that were made on another plan" if fact.sources else ""
    words = f"{fact.job} is loading on {', '.join(fact.plan.workers())}{copies}"
    return "; ".join([words, *(f"{worker} is left out: {why}" for worker, why in fact.unable.items())])


@log_line.register
def _describe_job_running(fact: facts.JobRunning) -> str:
    return f"{fact.job} runs"


@log_line.register
def _describe_share_checked(fact: facts.ShareChecked) -> str:
    return f"{fact.job}: {fact.words}"


@log_line.register
def _describe_version_failed(fact: facts.VersionFailed) -> str:
    return f"{fact.job}: no copies of the state after unit {fact.version.unit} ({fact.reason})"


@log_line.register
def _describe_copy_stored(fact: facts.CopyStored) -> str:
    what = "has stored" if fact.stored else "could not store"
    return f"{fact.job}: the submitter {what} the copy of the state after unit {fact.unit}"


@log_line.register
def _describe_codecs_decided(fact: facts.CodecsDecided) -> str:
    changes = [f"{one.source} -> {one.target} uses {one.codec} ({one.reason})" for one in fact.changes]
    if not changes:
        return f"{fact.job} keeps its codecs from unit {fact.unit} on"
    return one_line(f"{fact.job} changes codecs from unit {fact.unit} on: {'; '.join(changes)}")


@log_line.register
def _describe_job_collecting(fact: facts.JobCollecting) -> str:
    return f"{fact.job} sends its weights to the submitter, then it is {fact.state}{_because(fact.reason)}"


@log_line.register
def _describe_job_ended(fact: facts.JobEnded) -> str:
    return f"{fact.job} is {fact.state}{_because(fact.reason)}"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""

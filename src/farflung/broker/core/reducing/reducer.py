"""Apply facts to the state: a table of the functions that do so. Decisions are made elsewhere."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

from farflung.broker.core import facts
from farflung.broker.core.blobs import JobBlobs, digest_of
from farflung.broker.core.protecting.checks import Checks
from farflung.broker.core.protecting.unfit import Unfit
from farflung.broker.core.records import (
    COLLECTING,
    QUEUED,
    Job,
    Pace,
    Recovery,
    State,
)
from farflung.broker.core.reducing import attempt_reducer, trust_reducer, unit_reducer, worker_reducer
from farflung.broker.core.training.copies import Copies
from farflung.broker.core.training.monitoring import Monitoring
from farflung.plans import NO_WISHES


def reduce_fact(state: State, fact: facts.Fact) -> State:
    """The state after `fact`.

    Raises
    ------
    ProtocolError
        A `WorkerReady` breaks the rules of its commit group.
    """
    return _evolve(fact, state)


@singledispatch
def _evolve(fact: object, state: State) -> State:
    raise TypeError(f"not a fact: {fact!r}")


for _function in (
    worker_reducer.worker_admitted,
    worker_reducer.worker_holds,
    worker_reducer.worker_moved,
    worker_reducer.worker_measured,
    worker_reducer.worker_verified,
    worker_reducer.worker_lost,
    worker_reducer.worker_away,
    worker_reducer.worker_leaving,
    worker_reducer.worker_released,
    trust_reducer.member_removed,
    trust_reducer.member_allowed,
    trust_reducer.worker_blamed,
    trust_reducer.worker_suspected,
    trust_reducer.suspicions_limited,
    trust_reducer.wait_limited,
    unit_reducer.unit_decided,
    unit_reducer.version_stable,
    unit_reducer.replanning_changed,
    unit_reducer.checks_changed,
    unit_reducer.share_checked,
    unit_reducer.version_failed,
    unit_reducer.standbys_changed,
    unit_reducer.copy_asked,
    unit_reducer.copy_stored,
    unit_reducer.codecs_decided,
    unit_reducer.codec_tuning_changed,
    unit_reducer.worker_loaded,
    unit_reducer.worker_ready,
    attempt_reducer.job_planning,
    attempt_reducer.job_requeued,
    attempt_reducer.job_rolled_back,
    attempt_reducer.job_restoring,
    attempt_reducer.plan_given_up,
    attempt_reducer.job_moves,
    attempt_reducer.version_given_up,
    attempt_reducer.job_regrouped,
    attempt_reducer.job_replaying,
    attempt_reducer.job_mended,
    attempt_reducer.job_loading,
    attempt_reducer.job_running,
):
    _evolve.register(_function)


@_evolve.register
def _apply_job_submitted(fact: facts.JobSubmitted, state: State) -> State:
    unit = fact.training.units().at(fact.unit)
    job = Job(
        job=fact.job,
        name=fact.name,
        submitter=fact.submitter,
        training=fact.training,
        asked=fact.workers,
        pace=Pace(fact.at),
        blobs=JobBlobs(fact.graph_digest or digest_of(fact.graph)),
        on=tuple(fact.on),
        wishes=fact.wishes,
        seen=fact.seen,
        attempt=fact.attempts,
        unit=unit,
        step=0 if unit is None else unit.step,
        copies=Copies(fact.checkpoint_every, stable=fact.unit),
        checkpoint_end=fact.checkpoint_end,
        saves=fact.saves,
        recovery=Recovery(reached=fact.unit),
        patience_seconds=fact.patience_seconds,
        run=fact.run,
        earlier=fact.attempts,
        monitoring=Monitoring.of(fact.training, fact.unit, fact.monitored),
        since=fact.at,
        graph_bytes=fact.graph_bytes,
        draws=fact.draws,
    )
    return replace(state, submitted=fact.number or state.submitted + 1).with_job(job)


@_evolve.register
def _apply_submitter_away(fact: facts.SubmitterAway, state: State) -> State:
    return state.with_job(replace(state.jobs[fact.job], held_since=fact.at, words=""))


@_evolve.register
def _apply_submitter_returned(fact: facts.SubmitterReturned, state: State) -> State:
    job = state.jobs[fact.job]
    attempt = max(job.attempt, fact.attempt) if job.state == QUEUED else job.attempt
    pace = replace(job.pace, moved_at=fact.at)
    words = "" if job.state == QUEUED else job.words  # then it is explained again, to the one who is back
    waits_since = None if job.waits_since is None else fact.at
    return state.with_job(
        replace(
            job,
            held_since=None,
            waits_since=waits_since,
            seen=fact.seen,
            attempt=attempt,
            pace=pace,
            words=words,
        )
    )


@_evolve.register
def _apply_job_ending(fact: facts.JobEnding, state: State) -> State:
    job = state.jobs[fact.job]
    return state.with_job(replace(job, ending=fact.state, reason=fact.reason))


@_evolve.register
def _apply_job_collecting(fact: facts.JobCollecting, state: State) -> State:
    job = replace(state.jobs[fact.job], reason=fact.reason, ending=fact.state, checked=tuple(fact.checked))
    is_checked = job.unit is None and bool(job.training.verify)  # then it was made for that alone
    collecting = replace(
        job,
        state=COLLECTING,
        group=None,
        pace=replace(job.pace, moved_at=fact.at),
        versions=replace(job.versions, under_way=None) if is_checked else job.versions,
        monitoring=attempt_reducer.monitoring_without_copy(job),
    )
    return state.with_job(collecting)


@_evolve.register
def _apply_job_ended(fact: facts.JobEnded, state: State) -> State:
    job = state.jobs[fact.job]
    # Drop what an ended job no longer needs; ended jobs stay in memory as long as the broker runs.
    ended = replace(
        attempt_reducer.without_plan(job),
        state=fact.state,
        reason=fact.reason,
        blobs=JobBlobs(),
        wishes=NO_WISHES,
        unable={},
        blamed={},
        owned=(),
        unit=None,
        loaded=frozenset(),
        traffic={},
        decisions=(),
        copies=Copies(),
        unprotected="",
        standbys={},
        unfit_standbys=Unfit(),
        needs={},
        recovery=Recovery(),
        tuning=None,
        checks=Checks(),
        checked=(),
        results=(),
        held_since=None,
        waits_since=None,
        monitoring=Monitoring(),
    )
    return attempt_reducer.assign_workers(state, job, ()).with_job(ended)


@_evolve.register
def _apply_wait_explained(fact: facts.WaitExplained, state: State) -> State:
    return state.with_job(replace(state.jobs[fact.job], words=fact.words))

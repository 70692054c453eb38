"""Apply facts to the state. Decisions are made elsewhere; this file only carries them out."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from functools import singledispatch

import msgspec

from farflung.broker.core import facts
from farflung.broker.core.blobs import JobBlobs, digest_of
from farflung.broker.core.commit import CommitGroup, add_traffic
from farflung.broker.core.copies import Copies
from farflung.broker.core.history import History, renamed
from farflung.broker.core.records import (
    COLLECTING,
    LOADING,
    PLANNING,
    QUEUED,
    RUNNING,
    Job,
    Pace,
    Recovery,
    Result,
    State,
    Worker,
)
from farflung.broker.core.versions import Version, Versions
from farflung.broker.network.worker_addresses import WorkerAddresses
from farflung.plans import NO_WISHES
from farflung.protocol.copies import StateVersion
from farflung.protocol.worker import Decide, PastUnit

MOST_RESULTS = 1000
"""The results of a job that are kept for a submitter that returns."""


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


@_evolve.register
def _apply_worker_admitted(fact: facts.WorkerAdmitted, state: State) -> State:
    for job in state.jobs.values():
        if fact.worker in job.unable or fact.worker in job.recovery.unfit:  # it may have another device now
            unable = {worker: why for worker, why in job.unable.items() if worker != fact.worker}
            unfit = tuple(worker for worker in job.recovery.unfit if worker != fact.worker)
            recovery = replace(job.recovery, unfit=unfit)
            state = state.with_job(replace(job, unable=unable, recovery=recovery))
    known = state.workers.get(fact.worker)
    held_by = known.job if fact.returns and known is not None else None
    if held_by is not None:
        returned_to = state.jobs[held_by]
        pace = replace(returned_to.pace, moved_at=fact.at)
        state = state.with_job(replace(returned_to, pace=pace))
    return state.with_worker(
        Worker(
            fact.worker,
            fact.device,
            fact.site,
            _new_addresses(known, fact),
            fact.boot,
            connected=True,
            job=held_by,
            relay_mbps=fact.relay_mbps,
            line=fact.line,
            disk_bytes=fact.disk_bytes,
        )
    )


@_evolve.register
def _apply_worker_holds(fact: facts.WorkerHolds, state: State) -> State:
    return state.with_worker(replace(state.workers[fact.worker], held=tuple(fact.held)))


@_evolve.register
def _apply_worker_moved(fact: facts.WorkerMoved, state: State) -> State:
    worker = state.workers[fact.worker]
    return state.with_worker(replace(worker, where=_new_addresses(worker, fact)))


@_evolve.register
def _apply_worker_verified(fact: facts.WorkerVerified, state: State) -> State:
    worker = state.workers[fact.worker]
    return state.with_worker(replace(worker, where=replace(worker.where, verified=tuple(fact.addresses))))


@_evolve.register
def _apply_worker_lost(fact: facts.WorkerLost, state: State) -> State:
    return state.with_worker(
        replace(state.workers[fact.worker], connected=False, job=None, trouble=fact.reason, away_since=None)
    )


@_evolve.register
def _apply_worker_away(fact: facts.WorkerAway, state: State) -> State:
    worker = state.workers[fact.worker]
    return state.with_worker(replace(worker, connected=False, trouble=fact.reason, away_since=fact.at))


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
        recovery=Recovery(reached=fact.unit),
        patience_seconds=fact.patience_seconds,
        run=fact.run,
        earlier=fact.attempts,
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
    return state.with_job(
        replace(job, held_since=None, seen=fact.seen, attempt=attempt, pace=pace, words=words)
    )


@_evolve.register
def _apply_job_planning(fact: facts.JobPlanning, state: State) -> State:
    job = state.jobs[fact.job]
    job = replace(
        job,
        state=PLANNING,
        reason="",
        attempt=fact.attempt,
        members=tuple(fact.workers),
        blobs=JobBlobs(job.blobs.graph),
        plan=None,
        codecs=(),
        group=None,
        copies=job.copies.interrupted(),
        holders={},
        versions=Versions(),
        history=History(),
        restores=False,
        replayer="",
        donors={},
        unprotected="",
        needs={},
        pace=Pace(fact.at),
        words="",
    )
    return _assign_workers(state, job, fact.workers).with_job(job)


@_evolve.register
def _apply_job_requeued(fact: facts.JobRequeued, state: State) -> State:
    job = state.jobs[fact.job]
    unable = {**job.unable, **fact.unable}
    queued = replace(
        job,
        state=QUEUED,
        reason=fact.reason,
        unable=unable,
        members=(),
        words="",
        pace=Pace(fact.at),
        recovery=replace(job.recovery, unfit=tuple(fact.unfit)),
    )
    return _assign_workers(state, job, ()).with_job(queued)


@_evolve.register
def _apply_job_rolled_back(fact: facts.JobRolledBack, state: State) -> State:
    job, unit = state.jobs[fact.job], state.jobs[fact.job].training.units().at(fact.unit)
    assert unit is not None
    queued = replace(
        job,
        state=QUEUED,
        reason=fact.reason,
        members=(),
        words="",
        pace=Pace(fact.at),
        blobs=JobBlobs(job.blobs.graph),
        plan=None,
        owned=(),
        keeps=False,
        restores=False,
        replayer="",
        donors={},
        unit=unit,
        step=unit.step,
        ending="",
        loaded=frozenset(),
        group=None,
        codecs=(),
        decisions=(),
        tuning=None,
        copies=job.copies.interrupted(),
        holders={},
        versions=Versions(),
        results=tuple(result for result in job.results if result.unit < fact.unit),
        history=History(),
        recovery=_after_attempt(job, fact),
    )
    if fact.restores:
        queued = replace(
            queued,
            blobs=job.blobs,
            plan=job.plan,
            owned=job.owned,
            holders=job.holders,
            versions=job.versions.interrupted(),
            pace=replace(job.pace, moved_at=fact.at),
        )
    return _assign_workers(state, job, ()).with_job(queued)


@_evolve.register
def _apply_job_restoring(fact: facts.JobRestoring, state: State) -> State:
    held = state.jobs[fact.job]
    job = replace(
        held,
        state=LOADING,
        attempt=fact.attempt,
        plan=fact.plan,
        members=tuple(fact.plan.workers()),
        codecs=tuple(fact.plan.codecs),
        holders=dict(fact.holders),
        donors=dict(fact.donors),
        restores=True,
        versions=held.versions.seated(tuple(fact.plan.codecs)),
        replayer="",
        history=History(),
        logged={},
        unprotected="",
        words="",
        pace=replace(held.pace, moved_at=fact.at),
    )
    return _assign_workers(state, held, job.members).with_job(job)


@_evolve.register
def _apply_version_given_up(fact: facts.VersionGivenUp, state: State) -> State:
    job, unit = state.jobs[fact.job], state.jobs[fact.job].training.units().at(fact.unit)
    assert unit is not None
    queued = replace(
        job,
        reason=fact.reason,
        words="",
        pace=Pace(fact.at),
        blobs=JobBlobs(job.blobs.graph),
        plan=None,
        owned=(),
        unit=unit,
        step=unit.step,
        holders={},
        versions=Versions(),
        recovery=replace(job.recovery, begins=fact.unit),
        history=History(),
    )
    return state.with_job(queued)


@_evolve.register
def _apply_job_regrouped(fact: facts.JobRegrouped, state: State) -> State:
    job = state.jobs[fact.job]
    tuning = job.tuning and replace(job.tuning, waiting=(), is_busy=False)  # its answer counts no more
    regrouped = replace(
        job,
        state=LOADING,
        reason=job.reason if job.ending else fact.reason,
        attempt=fact.attempt,
        keeps=True,
        restores=False,
        replayer="",
        donors={},
        loaded=frozenset(),
        group=None,
        tuning=tuning,
        copies=job.copies.interrupted(),
        versions=job.versions.interrupted(),
        recovery=_regrouped(job),
        pace=replace(job.pace, moved_at=fact.at),
    )
    return state.with_job(regrouped)


@_evolve.register
def _apply_job_replaying(fact: facts.JobReplaying, state: State) -> State:
    held = state.jobs[fact.job]
    assert held.plan is not None
    pairs = zip(held.plan.placements, fact.plan.placements, strict=True)
    names = {before.worker: after.worker for before, after in pairs}
    versions = held.versions.interrupted().seated(tuple(fact.plan.codecs))
    assert versions.stable is not None
    job = replace(
        held,
        state=LOADING,
        reason=held.reason if held.ending else fact.reason,
        attempt=fact.attempt,
        plan=fact.plan,
        members=tuple(fact.plan.workers()),
        codecs=renamed(held.codecs, names),
        holders=dict(fact.holders),
        donors=dict(fact.donors),
        keeps=True,
        restores=False,
        replayer=fact.replayer,
        logged={name: unit for name, unit in held.logged.items() if name in held.plan.workers()},
        history=held.history.since(versions.stable.next_unit).renamed(names),
        versions=versions,
        loaded=frozenset(),
        group=None,
        tuning=None,
        copies=held.copies.interrupted(),
        unprotected="",
        recovery=_regrouped(held),
        pace=replace(held.pace, moved_at=fact.at),
    )
    return _assign_workers(state, held, job.members).with_job(job)


@_evolve.register
def _apply_job_ending(fact: facts.JobEnding, state: State) -> State:
    job = state.jobs[fact.job]
    return state.with_job(replace(job, ending=fact.state, reason=fact.reason))


@_evolve.register
def _apply_job_loading(fact: facts.JobLoading, state: State) -> State:
    held = state.jobs[fact.job]
    job = replace(
        held,
        state=LOADING,
        blobs=JobBlobs(held.blobs.graph, dict(fact.programs), fact.steering),
        plan=fact.plan,
        members=tuple(fact.plan.workers()),
        loaded=frozenset(),
        trained=tuple(frozenset(values) for values in fact.trained),
        owned=tuple(map(tuple, fact.owned)),
        keeps=False,
        codecs=tuple(fact.plan.codecs),
        tuning=None,
        holders=dict(fact.holders),
        unprotected="",
        pace=Pace(fact.at),
    )
    return _assign_workers(state, held, job.members).with_job(job)


@_evolve.register
def _apply_job_running(fact: facts.JobRunning, state: State) -> State:
    job = state.jobs[fact.job]
    pace = replace(job.pace, moved_at=fact.at) if job.keeps else Pace(fact.at)
    return state.with_job(replace(job, state=RUNNING, reason="", pace=pace))


@_evolve.register
def _apply_unit_decided(fact: facts.UnitDecided, state: State) -> State:
    job = state.jobs[fact.job]
    assert job.unit is not None
    trained = job.unit.train
    # Each member has applied the earlier ones, or it could not have been ready for this unit.
    decisions = (Decide(job.job, fact.attempt, fact.unit, fact.scale, keep=fact.keep, copy=fact.copy),)
    moved = replace(
        job,
        pace=_next_pace(job, fact.at),
        step=job.step + trained,
        loss=fact.loss if trained else job.loss,
        unit=job.training.units().at(job.unit.number + 1),
        group=None,
        decisions=decisions,
        copies=job.copies.decided(job.unit, fact.keep),
        results=(*job.results, _result_of(fact))[-MOST_RESULTS:],
    )
    if job.holders:
        past = PastUnit(fact.scale, digests=fact.digests)
        moved = replace(moved, history=job.history.decided(fact.unit, past))
    if fact.copy:
        name = StateVersion(fact.attempt, fact.unit)
        version = Version(name, fact.at, moved.step, job.codecs)
        moved = replace(moved, versions=job.versions.decided(version))
    return state.with_job(moved)


@_evolve.register
def _apply_version_stable(fact: facts.VersionStable, state: State) -> State:
    job = state.jobs[fact.job]
    versions = job.versions.became_stable(fact.digests, fact.largest_bytes, fact.at)
    assert versions.stable is not None
    history = job.history.since(versions.stable.next_unit)
    return state.with_job(replace(job, versions=versions, history=history))


@_evolve.register
def _apply_version_failed(fact: facts.VersionFailed, state: State) -> State:
    job = state.jobs[fact.job]
    return state.with_job(replace(job, versions=job.versions.failed(fact.reason, fact.at)))


@_evolve.register
def _apply_copy_asked(fact: facts.CopyAsked, state: State) -> State:
    job = state.jobs[fact.job]
    return state.with_job(replace(job, copies=job.copies.asked()))


@_evolve.register
def _apply_copy_stored(fact: facts.CopyStored, state: State) -> State:
    job = state.jobs[fact.job]
    copies = job.copies.stored(fact.unit) if fact.stored else job.copies.failed()
    return state.with_job(replace(job, copies=copies))


@_evolve.register
def _apply_codecs_decided(fact: facts.CodecsDecided, state: State) -> State:
    job, codecs = state.jobs[fact.job], tuple(fact.codecs)
    decisions = tuple(
        msgspec.structs.replace(decision, codecs=codecs) if decision.unit + 1 == fact.unit else decision
        for decision in job.decisions
    )
    changed = replace(
        job,
        codecs=codecs,
        decisions=decisions,
        versions=job.versions.with_codecs(fact.unit, codecs),
        history=job.history.with_codecs(fact.unit, codecs),
    )
    return state.with_job(changed)


@_evolve.register
def _apply_steered(fact: facts.CodecTuningChanged, state: State) -> State:
    return state.with_job(replace(state.jobs[fact.job], tuning=fact.tuning))


@_evolve.register
def _apply_job_collecting(fact: facts.JobCollecting, state: State) -> State:
    job = state.jobs[fact.job]
    pace = replace(job.pace, moved_at=fact.at)
    return state.with_job(
        replace(job, state=COLLECTING, reason=fact.reason, ending=fact.state, group=None, pace=pace)
    )


@_evolve.register
def _apply_job_ended(fact: facts.JobEnded, state: State) -> State:
    job = state.jobs[fact.job]
    # Drop what an ended job no longer needs; ended jobs stay in memory as long as the broker runs.
    ended = replace(
        job,
        state=fact.state,
        reason=fact.reason,
        blobs=JobBlobs(),
        wishes=NO_WISHES,
        unable={},
        plan=None,
        owned=(),
        unit=None,
        group=None,
        loaded=frozenset(),
        traffic={},
        codecs=(),
        decisions=(),
        copies=Copies(),
        holders={},
        versions=Versions(),
        history=History(),
        restores=False,
        replayer="",
        donors={},
        unprotected="",
        needs={},
        recovery=Recovery(),
        tuning=None,
        words="",
        results=(),
        held_since=None,
    )
    return _assign_workers(state, job, ()).with_job(ended)


@_evolve.register
def _apply_worker_loaded(fact: facts.WorkerLoaded, state: State) -> State:
    job = state.jobs[fact.job]
    unprotected = job.unprotected or (fact.unprotected and f"{fact.worker}: {fact.unprotected}")
    needs = {**job.needs, fact.worker: fact.needs_bytes} if fact.needs_bytes else job.needs
    loaded = job.loaded | {fact.worker}
    return state.with_job(replace(job, loaded=loaded, unprotected=unprotected, needs=needs))


@_evolve.register
def _apply_worker_ready(fact: facts.WorkerReady, state: State) -> State:
    job = state.jobs[fact.job]
    assert job.plan is not None and job.unit is not None
    group = job.group or CommitGroup.for_plan(job.plan, job.attempt, job.unit, job.trained)
    group = group.add(fact.worker, fact.ready)
    traffic, logged = add_traffic(job.traffic, group, fact.worker), job.logged
    if (since := fact.ready.logged_from) != logged.get(fact.worker):
        others = {name: unit for name, unit in logged.items() if name != fact.worker}
        logged = others if since is None else {**others, fact.worker: since}
    return state.with_job(replace(job, group=group, traffic=traffic, logged=logged))


@_evolve.register
def _apply_wait_explained(fact: facts.WaitExplained, state: State) -> State:
    return state.with_job(replace(state.jobs[fact.job], words=fact.words))


def _new_addresses(known: Worker | None, fact: facts.WorkerAdmitted | facts.WorkerMoved) -> WorkerAddresses:
    """The worker's new addresses; verified ones are kept if the same process makes the same claims."""
    where = WorkerAddresses(tuple(fact.addresses), tuple(fact.claims), fact.seen)
    if known is None or (known.where.claims, known.where.seen) != (where.claims, where.seen):
        return where
    is_new = isinstance(fact, facts.WorkerAdmitted) and fact.boot != known.boot
    return where if is_new else replace(where, verified=known.where.verified)


def _assign_workers(state: State, job: Job, keep: Collection[str]) -> State:
    """Assign the workers `keep` to `job` and free its other workers."""
    for name in {*job.members, *keep}:
        worker = state.workers[name]
        if name in keep:
            state = state.with_worker(replace(worker, job=job.job))
        elif worker.job == job.job:
            state = state.with_worker(replace(worker, job=None))
    return state


def _after_attempt(job: Job, fact: facts.JobRolledBack) -> Recovery:
    before = job.recovery
    if fact.dropped:
        over = fact.attempt if fact.over else before.over
        return replace(before, over=over, last=fact.attempt, begins=fact.unit)
    fruitless = 0 if job.began > before.reached else before.fruitless + 1
    over = fact.attempt if fact.over else before.over
    reached = max(job.began, before.reached)
    return Recovery(before.failed + 1, reached, fruitless, over, last=fact.attempt, begins=fact.unit)


def _result_of(fact: facts.UnitDecided) -> Result:
    loss = fact.loss if math.isfinite(fact.loss) else None
    return Result(fact.unit, fact.attempt, loss, fact.gradient_norm, fact.bytes_sent)


def _regrouped(job: Job) -> Recovery:
    is_further = job.began > job.recovery.reached
    return replace(
        job.recovery,
        reached=max(job.began, job.recovery.reached),
        fruitless=0 if is_further else job.recovery.fruitless,
        over=_over_since(job),
        regrouped=1 if is_further else job.recovery.regrouped + 1,
    )


def _over_since(job: Job) -> int:
    """The first attempt whose last state is still that of the job; 0 if more units follow."""
    if job.unit is not None and not job.ending:
        return job.recovery.over
    return job.recovery.over if job.keeps and job.recovery.over else job.attempt


def _next_pace(job: Job, at: float) -> Pace:
    assert job.unit is not None
    seconds = max(at - job.pace.moved_at, 1e-9)
    slowest = max(job.pace.slowest or 0.0, seconds / job.unit.microbatches)
    speed = job.pace.samples_per_second
    if job.unit.train:
        speed = job.unit.microbatches * job.training.microbatch_size / seconds
    return Pace(at, slowest, speed)

"""How the beginning and the end of attempts change the state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import msgspec

from farflung.broker.core import facts
from farflung.broker.core.blobs import JobBlobs
from farflung.broker.core.protecting.history import History
from farflung.broker.core.protecting.unfit import Unfit
from farflung.broker.core.protecting.versions import Versions
from farflung.broker.core.records import (
    LOADING,
    PLANNING,
    QUEUED,
    RUNNING,
    Job,
    Pace,
    Recovery,
    State,
)
from farflung.broker.core.training.monitoring import Monitoring
from farflung.plans import LinkCodec, Plan, renamed_codecs


def job_planning(fact: facts.JobPlanning, state: State) -> State:
    held = state.jobs[fact.job]
    job = replace(
        without_plan(held),
        state=PLANNING,
        reason="",
        attempt=fact.attempt,
        members=tuple(fact.workers),
        blobs=JobBlobs(held.blobs.graph),
        copies=held.copies.interrupted(),
        unprotected="",
        needs={},
        pace=Pace(fact.at),
    )
    if fact.restores:
        job = replace(
            job,
            blobs=held.blobs,
            plan=held.plan,
            holders=held.holders,
            versions=held.versions,
            recuts=True,
            pace=replace(held.pace, moved_at=fact.at),
        )
    return assign_workers(state, job, fact.workers).with_job(job)


def job_requeued(fact: facts.JobRequeued, state: State) -> State:
    job = state.jobs[fact.job]
    unable = {**job.unable, **fact.unable}
    queued = replace(
        job,
        state=QUEUED,
        reason=fact.reason,
        unable=unable,
        members=(),
        words="",
        pace=Pace(fact.at) if job.plan is None else replace(job.pace, moved_at=fact.at),
        recovery=replace(job.recovery, unfit=tuple(fact.unfit), scattered=fact.scattered),
    )
    return assign_workers(state, job, ()).with_job(queued)


def job_rolled_back(fact: facts.JobRolledBack, state: State) -> State:
    job, unit = state.jobs[fact.job], state.jobs[fact.job].training.units().at(fact.unit)
    assert unit is not None
    queued = replace(
        without_plan(job),
        state=QUEUED,
        reason=fact.reason,
        members=(),
        pace=Pace(fact.at),
        blobs=JobBlobs(job.blobs.graph),
        owned=(),
        keeps=False,
        unit=unit,
        step=unit.step,
        ending="",
        checked=(),
        loaded=frozenset(),
        decisions=(),
        tuning=None,
        copies=job.copies.interrupted(),
        results=tuple(result for result in job.results if result.unit < fact.unit),
        monitoring=job.monitoring.rolled_back(fact.unit),
        recovery=_after_attempt(job, fact),
        waits_since=fact.at if job.waits_since is None else job.waits_since,
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
    return assign_workers(state, job, ()).with_job(queued)


def job_restoring(fact: facts.JobRestoring, state: State) -> State:
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
        sources=fact.sources,
        state_donors={},
        replanning=held.replanning.in_next_attempt(fact.plan),
        recuts=False,
        restores=True,
        versions=held.versions.seated(tuple(fact.plan.codecs)),
        replayers=(),
        history=History(),
        logged={},
        unprotected="",
        standbys={},
        unfit_standbys=Unfit(),
        words="",
        pace=replace(held.pace, moved_at=fact.at),
    )
    return assign_workers(state, held, job.members).with_job(job)


def plan_given_up(fact: facts.PlanGivenUp, state: State) -> State:
    job = state.jobs[fact.job]
    unable = {**job.unable, **fact.unable}
    return state.with_job(replace(job, reason=fact.reason, unable=unable, recuts=True, words=""))


def version_given_up(fact: facts.VersionGivenUp, state: State) -> State:
    job, unit = state.jobs[fact.job], state.jobs[fact.job].training.units().at(fact.unit)
    assert unit is not None
    unfit = () if job.recovery.scattered else job.recovery.unfit
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
        recuts=False,
        recovery=replace(job.recovery, begins=fact.unit, unfit=unfit, scattered=False),
        history=History(),
        monitoring=job.monitoring.rolled_back(fact.unit),
    )
    return state.with_job(queued)


def job_regrouped(fact: facts.JobRegrouped, state: State) -> State:
    held = state.jobs[fact.job]
    tuning = held.tuning and replace(held.tuning, waiting=(), is_busy=False)  # its answer counts no more
    job = replace(
        _keeping_state(held, fact),
        replayers=tuple(sorted({*fact.awaited} | held.without_state)) if fact.awaited else (),
        awaited=tuple(fact.awaited),
        tuning=tuning,
        versions=held.versions.interrupted(),
    )
    if fact.awaited:
        job = replace(job, recovery=replace(held.recovery, over=_over_since(held)))
    return state.with_job(job)


def job_replaying(fact: facts.JobReplaying, state: State) -> State:
    held = state.jobs[fact.job]
    assert held.plan is not None
    seats = fact.plan.seats()
    names = {name: seats[segment] for segment, name in held.plan.seats().items()}
    versions = held.versions.interrupted().seated(tuple(fact.plan.codecs))
    assert versions.stable is not None
    job = replace(
        _with_others(held, fact),
        codecs=tuple(renamed_codecs(held.codecs, names)),
        donors=dict(fact.donors),
        replayers=tuple(fact.replayers),
        logged={name: unit for name, unit in held.logged.items() if name not in fact.replayers},
        history=held.history.since(versions.stable.next_unit).renamed(names),
        versions=versions,
    )
    return assign_workers(state, held, job.members).with_job(job)


def job_mended(fact: facts.JobMended, state: State) -> State:
    held = state.jobs[fact.job]
    job = replace(
        _with_others(held, fact),
        whole=held.whole or held.plan,
        codecs=tuple(fact.plan.codecs),
        state_donors=dict(fact.donors),
        replayers=(),
        logged={},
        history=History(),
        versions=_mended(held, fact.plan),
        late={**held.late, **{name: held.late.get(name, 0) + 1 for name in fact.late}},
    )
    return assign_workers(state, held, job.members).with_job(job)


def job_loading(fact: facts.JobLoading, state: State) -> State:
    held = _with_evaluations(state.jobs[fact.job], fact.validation_microbatches)
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
        restores=bool(fact.sources),
        donors={},
        sources=fact.sources,
        state_donors={},
        whole=None,
        replanning=held.replanning.in_next_attempt(fact.plan),
        recuts=False,
        unprotected="",
        standbys={},
        unfit_standbys=Unfit(),
        pace=Pace(fact.at),
    )
    if fact.sources:
        job = replace(job, versions=_recut(held, job.codecs), history=History(), logged={})
    return assign_workers(state, held, job.members).with_job(job)


def _with_evaluations(job: Job, microbatches: int) -> Job:
    """The job with so many microbatches in each evaluation, if any are given: its first plan decides that."""
    if not job.wishes.validation_share:
        return job
    training = job.training.evaluating_on(microbatches)
    unit = None if job.unit is None else training.units().at(job.unit.number)
    wishes = msgspec.structs.replace(job.wishes, validation_share=0.0)
    return replace(job, training=training, unit=unit, wishes=wishes)


def job_running(fact: facts.JobRunning, state: State) -> State:
    job = state.jobs[fact.job]
    pace = replace(job.pace, moved_at=fact.at) if job.keeps else Pace(fact.at)
    loading = job.loading_seconds if job.keeps else fact.at - job.pace.moved_at
    ran_at = job.ran_at if job.keeps else fact.at
    job = replace(job, state=RUNNING, reason="", pace=pace, waits_since=None, loading_seconds=loading)
    job = replace(job, ran_at=ran_at)
    return state.with_job(replace(job, recovery=replace(job.recovery, unlinked=0, refused=0, apart="")))


def job_moves(fact: facts.JobMoves, state: State) -> State:
    return state.with_job(replace(state.jobs[fact.job], moved_at=fact.at))


def _with_others(held: Job, fact: facts.JobReplaying | facts.JobMended) -> Job:
    """The job in an attempt for which other workers are in places of its plan, and most keep their state."""
    return replace(
        _keeping_state(held, fact),
        plan=fact.plan,
        members=tuple(fact.plan.workers()),
        holders=dict(fact.holders),
        awaited=(),
        tuning=None,
        unprotected="",
    )


def _keeping_state(held: Job, fact: facts.JobRegrouped | facts.JobReplaying | facts.JobMended) -> Job:
    """The job in an attempt that begins with the state of its members, and drops the unit in flight."""
    return replace(
        held,
        state=LOADING,
        reason=held.reason if held.ending else fact.reason,
        attempt=fact.attempt,
        keeps=True,
        restores=False,
        donors={},
        sources={},
        state_donors={},
        replanning=held.replanning.in_next_attempt(
            held.plan if isinstance(fact, facts.JobRegrouped) else fact.plan
        ),
        standbys={},
        unfit_standbys=Unfit(),
        loaded=frozenset(),
        group=None,
        copies=held.copies.interrupted(),
        monitoring=monitoring_without_copy(held),
        recovery=_regrouped(held),
        pace=replace(held.pace, moved_at=fact.at),
    )


def without_plan(job: Job) -> Job:
    """The job without all that belongs to its plan, and to the copies that were made on it."""
    return replace(
        job,
        plan=None,
        whole=None,
        codecs=(),
        group=None,
        holders={},
        versions=Versions(),
        history=History(),
        restores=False,
        replayers=(),
        awaited=(),
        donors={},
        sources={},
        state_donors={},
        replanning=job.replanning.in_next_attempt(),
        recuts=False,
        standbys={},
        unfit_standbys=Unfit(),
        words="",
    )


def monitoring_without_copy(job: Job) -> Monitoring:
    """What the job's monitors have found, once no copy that is under way comes to its submitter any more.

    The weights that are collected at the end may be those of the copy.
    """
    under_way = job.copies.under_way
    unit = None if under_way is None else job.training.units().at(under_way)
    if job.ending and unit is not None and unit.step == job.step:
        return job.monitoring
    return job.monitoring.lost(job.training, under_way)


def assign_workers(state: State, job: Job, keep: Collection[str]) -> State:
    """Assign the workers `keep` to `job` and free its other workers."""
    for name in {*job.members, *keep}:
        worker = state.workers[name]
        if name in keep:
            state = state.with_worker(replace(worker, job=job.job))
        elif worker.job == job.job:
            state = state.with_worker(replace(worker, job=None))
    return state


def _recut(job: Job, codecs: tuple[LinkCodec, ...]) -> Versions:
    """The versions of a job that goes on from the stable one on another plan, with these codecs."""
    version = job.versions.stable
    assert version is not None and job.plan is not None
    names = version.names_by_share(job.plan, job.owned)
    return job.versions.recut(names, version.may_be_on(job.plan, job.holders), codecs)


def _mended(job: Job, plan: Plan) -> Versions:
    """The versions of a job that goes on with other workers in places of its plan, or other pipelines."""
    versions, stable = job.versions.interrupted(), job.versions.stable
    if stable is None:
        return versions
    assert job.plan is not None
    before, after = job.plan.seats(), plan.seats()
    if not after.keys() <= before.keys() and not stable.names:
        names_by_share = stable.names_by_share(job.plan, job.owned)
        return versions.recut(names_by_share, stable.may_be_on(job.plan, job.holders), stable.codecs)
    names = {name: after[segment] for segment, name in before.items() if segment in after}
    return versions.without_shares(after.keys(), tuple(renamed_codecs(stable.codecs, names)))


def _after_attempt(job: Job, fact: facts.JobRolledBack) -> Recovery:
    before = job.recovery
    first = before.over if job.keeps and before.over else fact.attempt
    over = first if fact.over else before.over
    if fact.dropped:
        return replace(before, over=over, last=fact.attempt, begins=fact.unit)
    fruitless = 0 if job.began > before.reached else before.fruitless + 1
    reached = max(job.began, before.reached)
    return Recovery(
        before.failed + 1,
        reached,
        fruitless,
        over,
        last=fact.attempt,
        begins=fact.unit,
        unlinked=before.unlinked + fact.unlinked,
        apart=fact.reason if fact.unlinked or fact.refused else before.apart,
        refused=before.refused + fact.refused,
    )


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

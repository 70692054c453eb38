"""How facts about workers change the state."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from farflung.broker.core import facts
from farflung.broker.core.records import (
    Leave,
    State,
    Worker,
)
from farflung.broker.network.worker_addresses import WorkerAddresses


def worker_admitted(fact: facts.WorkerAdmitted, state: State) -> State:
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
            leaving=known.leaving if known is not None and known.boot == fact.boot else None,
            measured_at=known.measured_at if known is not None and known.boot == fact.boot else fact.at,
            home_of=tuple(fact.home_of),
        )
    )


def worker_holds(fact: facts.WorkerHolds, state: State) -> State:
    return state.with_worker(replace(state.workers[fact.worker], held=tuple(fact.held)))


def worker_moved(fact: facts.WorkerMoved, state: State) -> State:
    worker = state.workers[fact.worker]
    return state.with_worker(replace(worker, where=_new_addresses(worker, fact)))


def worker_measured(fact: facts.WorkerMeasured, state: State) -> State:
    worker = state.workers[fact.worker]
    device = msgspec.structs.replace(worker.device, tflops=fact.tflops, rates=fact.rates)
    return state.with_worker(replace(worker, device=device, measured_at=fact.at))


def worker_verified(fact: facts.WorkerVerified, state: State) -> State:
    worker = state.workers[fact.worker]
    return state.with_worker(replace(worker, where=replace(worker.where, verified=tuple(fact.addresses))))


def worker_lost(fact: facts.WorkerLost, state: State) -> State:
    state = _without_copies_of(state, fact.worker, fact.at)
    return state.with_worker(_gone(state.workers[fact.worker], fact))


def worker_leaving(fact: facts.WorkerLeaving, state: State) -> State:
    worker = state.workers[fact.worker]
    if worker.job is not None:  # another one is to begin with what it has at its next step
        job = state.jobs[worker.job]
        state = state.with_job(replace(job, versions=job.versions.wanted(fact.at)))
    state = _without_copies_of(state, fact.worker, fact.at)
    since = fact.at if worker.leaving is None else worker.leaving.since
    return state.with_worker(replace(worker, leaving=Leave(since, fact.deadline, fact.reason)))


def worker_released(fact: facts.WorkerReleased, state: State) -> State:
    worker = _gone(state.workers[fact.worker], fact)
    return state.with_worker(replace(worker, leaving=None, released=True, in_order=fact.in_order))


def worker_away(fact: facts.WorkerAway, state: State) -> State:
    worker = state.workers[fact.worker]
    return state.with_worker(replace(worker, connected=False, trouble=fact.reason, away_since=fact.at))


def _gone(worker: Worker, fact: facts.WorkerLost | facts.WorkerReleased) -> Worker:
    return replace(worker, connected=False, job=None, trouble=fact.reason, away_since=None, gone_at=fact.at)


def _new_addresses(known: Worker | None, fact: facts.WorkerAdmitted | facts.WorkerMoved) -> WorkerAddresses:
    """The worker's new addresses; verified ones are kept if the same process makes the same claims."""
    where = WorkerAddresses(tuple(fact.addresses), tuple(fact.claims), fact.seen)
    if known is None or (known.where.claims, known.where.seen) != (where.claims, where.seen):
        return where
    is_new = isinstance(fact, facts.WorkerAdmitted) and fact.boot != known.boot
    return where if is_new else replace(where, verified=known.where.verified)


def _without_copies_of(state: State, worker: str, at: float) -> State:
    """The jobs whose newest version lies with a worker that is no member of them want another one soon."""
    for job in state.jobs.values():
        stable = job.versions.stable
        if stable is not None and worker in stable.holders.values() and worker not in job.members:
            state = state.with_job(replace(job, versions=job.versions.wanted(at)))
    return state

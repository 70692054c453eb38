"""How facts about the units of a running attempt, its copies and its codecs change the state."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec

from farflung.broker.core import facts
from farflung.broker.core.fleet.replanning import Replanning
from farflung.broker.core.protecting.versions import Version
from farflung.broker.core.records import (
    Job,
    Pace,
    Result,
    State,
)
from farflung.broker.core.training.commit import CommitGroup, add_traffic
from farflung.protocol.copies import StateVersion
from farflung.protocol.worker import Decide, PastUnit
from farflung.runtime.monitoring import Monitored

MOST_RESULTS = 1000
"""The results of a job that are kept for a submitter that returns."""


def unit_decided(fact: facts.UnitDecided, state: State) -> State:
    job = state.jobs[fact.job]
    assert job.unit is not None
    trained = job.unit.train
    # Each member has applied the earlier ones, or it could not have been ready for this unit.
    decision = Decide(
        job.job, fact.attempt, fact.unit, fact.scale, keep=fact.keep, copy=fact.copy, scales=fact.scales
    )
    moved = replace(
        job,
        pace=_next_pace(job, fact.at),
        step=job.step + trained,
        loss=fact.loss if trained else job.loss,
        unit=None if fact.stops else job.training.units().at(job.unit.number + 1),
        group=None,
        decisions=(decision,),
        copies=job.copies.decided(job.unit, fact.keep),
        results=(*job.results, _result_of(fact))[-MOST_RESULTS:],
        replanning=_measured(job, fact),
        monitoring=job.monitoring.decided(fact.unit, _found(job, fact), _returns_to(job, fact.unit)),
    )
    if job.holders:
        past = PastUnit(fact.scale, digests=fact.digests, received=fact.received)
        moved = replace(moved, history=job.history.decided(fact.unit, past))
    if fact.copy:
        name = StateVersion(fact.attempt, fact.unit)
        version = Version(name, fact.at, moved.step, job.codecs)
        moved = replace(moved, versions=job.versions.decided(version))
    return state.with_job(moved)


def _found(job: Job, fact: facts.UnitDecided) -> tuple[Monitored, ...]:
    assert job.unit is not None
    return job.monitoring.after(job.training, job.unit, fact.loss, fact.metrics)


def _returns_to(job: Job, unit: int) -> set[int]:
    """The units to which the job may go back, now or once what is under way is there; `unit` is decided."""
    versions = {one.next_unit for one in (job.versions.stable, job.versions.under_way) if one is not None}
    under_way = job.copies.under_way
    copies = {job.copies.stable} if under_way is None else {job.copies.stable, under_way, under_way + 1}
    return {*versions, *copies, unit}


def _measured(job: Job, fact: facts.UnitDecided) -> Replanning:
    """What is measured of the attempt, with a step that has just been decided."""
    known = job.replanning
    if job.unit is None or not job.unit.train:
        return known
    ready = () if job.group is None else job.group.ready_messages
    undecided = 0.0 if job.group is None else max(0.0, fact.at - job.group.at)
    computing = {name: one.computing_seconds for name, one in ready}
    known = known.stepped(fact.at - job.pace.moved_at, computing, undecided)
    if fact.copy and known.proposal is not None:
        version = StateVersion(fact.attempt, fact.unit)
        known = replace(known, proposal=replace(known.proposal, version=version))
    return known


def replanning_changed(fact: facts.ReplanningChanged, state: State) -> State:
    return state.with_job(replace(state.jobs[fact.job], replanning=fact.replanning))


def checks_changed(fact: facts.ChecksChanged, state: State) -> State:
    return state.with_job(replace(state.jobs[fact.job], checks=fact.checks))


def share_checked(fact: facts.ShareChecked, state: State) -> State:
    return state  # it is only to be known


def version_stable(fact: facts.VersionStable, state: State) -> State:
    job = state.jobs[fact.job]
    written = fact.written_bytes or 2 * fact.largest_bytes
    there = fact.at - fact.checking_seconds
    versions = job.versions.became_stable(fact.digests, written, there, fact.holders, fact.base_part)
    assert versions.stable is not None
    history = job.history.since(versions.stable.next_unit)
    return state.with_job(replace(job, versions=versions, history=history))


def version_failed(fact: facts.VersionFailed, state: State) -> State:
    job = state.jobs[fact.job]
    trouble = fact.reason if fact.pause_seconds else ""  # the next one may be made at once
    return state.with_job(replace(job, versions=job.versions.failed(trouble, fact.at + fact.pause_seconds)))


def standbys_changed(fact: facts.StandbysChanged, state: State) -> State:
    job = state.jobs[fact.job]
    return state.with_job(replace(job, standbys=dict(fact.standbys), unfit_standbys=fact.unfit))


def copy_asked(fact: facts.CopyAsked, state: State) -> State:
    job = state.jobs[fact.job]
    return state.with_job(replace(job, copies=job.copies.asked()))


def copy_stored(fact: facts.CopyStored, state: State) -> State:
    job = state.jobs[fact.job]
    copies = job.copies.stored(fact.unit) if fact.stored else job.copies.failed()
    return state.with_job(replace(job, copies=copies))


def codecs_decided(fact: facts.CodecsDecided, state: State) -> State:
    job, codecs = replace(state.jobs[fact.job], findings=fact.findings), tuple(fact.codecs)
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


def codec_tuning_changed(fact: facts.CodecTuningChanged, state: State) -> State:
    return state.with_job(replace(state.jobs[fact.job], tuning=fact.tuning))


def worker_loaded(fact: facts.WorkerLoaded, state: State) -> State:
    job = state.jobs[fact.job]
    unprotected = job.unprotected or (fact.unprotected and f"{fact.worker}: {fact.unprotected}")
    needs = {**job.needs, fact.worker: fact.needs_bytes} if fact.needs_bytes else job.needs
    loaded = job.loaded | {fact.worker}
    return state.with_job(replace(job, loaded=loaded, unprotected=unprotected, needs=needs))


def worker_ready(fact: facts.WorkerReady, state: State) -> State:
    job = state.jobs[fact.job]
    assert job.plan is not None and job.unit is not None
    group = job.group or CommitGroup.for_plan(
        job.plan, job.attempt, job.unit, job.trained, not job.training.has_sums(job.unit)
    )
    group = group.add(fact.worker, fact.ready, fact.at)
    traffic, logged = add_traffic(job.traffic, group, fact.worker), job.logged
    if (since := fact.ready.logged_from) != logged.get(fact.worker):
        others = {name: unit for name, unit in logged.items() if name != fact.worker}
        logged = others if since is None else {**others, fact.worker: since}
    return state.with_job(replace(job, group=group, traffic=traffic, logged=logged))


def _result_of(fact: facts.UnitDecided) -> Result:
    loss = fact.loss if math.isfinite(fact.loss) else None
    return Result(fact.unit, fact.attempt, loss, fact.gradient_norm, fact.bytes_sent, fact.metrics)


def _next_pace(job: Job, at: float) -> Pace:
    assert job.unit is not None
    if job.unit.merges:
        return replace(job.pace, moved_at=at)
    seconds = max(at - job.pace.moved_at, 1e-9)
    slowest = max(job.pace.slowest or 0.0, seconds / job.unit.microbatches)
    speed = job.pace.samples_per_second
    if job.unit.train:
        speed = job.unit.microbatches * job.training.microbatch_size / seconds
    return Pace(at, slowest, speed)

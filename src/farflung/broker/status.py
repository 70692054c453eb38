"""Build what `farflung status` shows from the state and from observations of sessions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from farflung.broker.core.fleet.membership import Membership, listed, membership
from farflung.broker.core.protecting.protection import protection
from farflung.broker.core.records import COLLECTING, QUEUED, RUNNING, Job, State, Worker
from farflung.broker.core.recovering import restoring
from farflung.broker.core.training.job_queue import needed
from farflung.protocol.messages import Status
from farflung.protocol.viewer import LEFT, JobStatus, LinkView, SegmentStatus, WorkerStatus

RECENT_JOBS = 100


@dataclass(frozen=True)
class Sighting:
    """The address that a worker's session comes from, and the seconds since it last received bytes.

    It has been there for `there_seconds`; 0: it has ended.
    """

    address: str
    seconds: float
    there_seconds: float = 0.0


def status_of(
    state: State,
    sightings: Mapping[str, Sighting],
    links: Iterable[LinkView],
    version: str,
    uptime_seconds: float,
    timeouts: Mapping[str, float],
    relay_mbps: float,
    now: float,
    joining: Collection[str] = (),
) -> Status:
    """All workers, the latest jobs in order of submission, the backup pool and all timeouts.

    A worker without a sighting has not been seen since the broker started: its `last_seen_seconds` is -1.
    The links of those that are `joining` are being measured. `now` is in seconds since 1970.
    """
    suspect_seconds = timeouts["suspect_seconds"]

    def shown(worker: Worker) -> WorkerStatus:
        sighting = sightings.get(worker.worker)
        silent = None if sighting is None else sighting.seconds
        what = membership(state, worker, silent, suspect_seconds, joining)
        gone = 0.0 if what.state != LEFT or worker.gone_at is None else max(0.0, now - worker.gone_at)
        measured = max(0.0, now - worker.measured_at) if worker.measured_at else -1.0
        return _worker_status(worker, sighting, what, gone, measured)

    return Status(
        version=version,
        uptime_seconds=uptime_seconds,
        workers=[shown(worker) for worker in listed(state, now)],
        jobs=[_job_status(state, job) for job in list(state.jobs.values())[-RECENT_JOBS:]],
        backup_pool=state.backup_pool(),
        timeouts=dict(timeouts),
        links=[view for view in links if _is_there(state, view)],
        relay_mbps=relay_mbps,
    )


def _is_there(state: State, view: LinkView) -> bool:
    """Whether both ends of a link may still use it: a worker that is gone reports nothing of its end."""
    job = state.jobs.get(view.job)
    if job is None:
        return False
    there = {name for name in job.members if state.workers[name].connected}
    return {view.holder, view.report.peer} <= {*there, job.submitter}


def _worker_status(
    worker: Worker,
    sighting: Sighting | None,
    what: Membership,
    gone_seconds: float,
    measured_seconds: float,
) -> WorkerStatus:
    return WorkerStatus(
        worker=worker.worker,
        state=what.state,
        device=worker.device.name,
        site=worker.site,
        address=sighting.address
        if sighting
        else next(iter((*worker.where.addresses, *worker.where.claims)), ""),
        last_seen_seconds=sighting.seconds if sighting else -1.0,
        job=worker.job or "",
        relay_mbps=worker.relay_mbps,
        framework=worker.device.framework,
        opset=worker.device.opset.version,
        lacks=list(worker.device.lacks),
        kernels=worker.device.kernels,
        reason=what.reason,
        connected=worker.connected,
        is_lost=what.is_lost,
        gone_seconds=gone_seconds,
        tflops=worker.device.tflops,
        rates=worker.device.rates,
        in_order=worker.in_order,
        measured_seconds=measured_seconds,
        memory_bytes=worker.device.memory_bytes,
        there_seconds=sighting.there_seconds if sighting else 0.0,
    )


def _job_status(state: State, job: Job) -> JobStatus:
    moving = job.state in (RUNNING, COLLECTING)
    validated_step, validation_loss = _newest_validation(job)
    return JobStatus(
        job=job.job,
        name=job.name,
        state=job.state,
        reason=job.words or job.reason,
        step=job.step,
        steps=job.training.steps,
        loss=None if job.training.emulated else job.loss,
        samples_per_second=job.pace.samples_per_second if moving else None,
        workers=list(job.members),
        emulated=job.training.emulated,
        links=[job.traffic[link] for link in sorted(job.traffic)],
        codecs=list(job.codecs) if moving else [],
        protection=protection(state, job),
        planning=job.replanning.words,
        held=job.held and not job.over,
        waits_for=_waits_for(state, job),
        step_seconds=job.replanning.step_seconds if moving else None,
        computing=job.replanning.usual_computing if moving else {},
        bottleneck=job.replanning.bottleneck if moving else "",
        validated_step=validated_step,
        validation_loss=validation_loss,
        segments=_segments(job) if moving else [],
    )


def _segments(job: Job) -> list[SegmentStatus]:
    placements = [] if job.plan is None else [one for one in job.plan.placements if one.workers]
    whole = sum(one.flops for one in placements) or 1
    return [
        SegmentStatus(one.segment, one.workers, one.flops / whole, one.parameter_bytes, one.nodes)
        for one in placements
    ]


def _newest_validation(job: Job) -> tuple[int | None, float | None]:
    """The steps after which the model was last evaluated, and the loss then.

    If it was evaluated twice, that without codecs.
    """
    units = job.training.units()
    for result in reversed(job.results if not job.training.emulated else ()):
        unit = units.at(result.unit)
        if unit is not None and unit.evaluates and (unit.plain or not job.training.validate_twice):
            return unit.step, result.loss
    return None, None


def _waits_for(state: State, job: Job) -> list[str]:
    """The workers without which the job cannot go on, or begin, as far as it depends on certain ones."""
    if job.over or job.held:
        return []
    if job.state == QUEUED and job.plan is not None:
        return restoring.missing(state, job)
    if job.state == QUEUED and job.on and needed(job) == len(job.on):
        return [name for name in job.on if name not in state.idle_for(job)]
    return state.away_for(job)

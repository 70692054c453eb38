"""Build what `farflung status` shows from the state and from observations of sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from farflung.broker.core.protection import protection
from farflung.broker.core.records import COLLECTING, LOADING, PLANNING, RUNNING, Job, State, Worker
from farflung.protocol.fields import has_left
from farflung.protocol.messages import Status
from farflung.protocol.viewer import JobStatus, LinkView, WorkerStatus

RECENT_JOBS = 100


@dataclass(frozen=True)
class Sighting:
    """The address that a worker's session comes from, and the seconds since it last received bytes."""

    address: str
    seconds: float


def status_of(
    state: State,
    sightings: Mapping[str, Sighting],
    links: Iterable[LinkView],
    version: str,
    uptime_seconds: float,
    timeouts: Mapping[str, float],
    relay_mbps: float,
) -> Status:
    """All workers, the latest jobs in order of submission, the backup pool and all timeouts.

    A worker without a sighting has not been seen since the broker started: its `last_seen_seconds` is -1.
    """
    workers = sorted(state.workers.values(), key=lambda worker: worker.worker)
    return Status(
        version=version,
        uptime_seconds=uptime_seconds,
        workers=[_worker_status(state, worker, sightings.get(worker.worker)) for worker in workers],
        jobs=[_job_status(state, job) for job in list(state.jobs.values())[-RECENT_JOBS:]],
        backup_pool=state.backup_pool(),
        timeouts=dict(timeouts),
        links=list(links),
        relay_mbps=relay_mbps,
    )


def _worker_status(state: State, worker: Worker, sighting: Sighting | None) -> WorkerStatus:
    return WorkerStatus(
        worker=worker.worker,
        state=_worker_state(state, worker),
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
    )


def _worker_state(state: State, worker: Worker) -> str:
    if worker.away:
        return "away"
    if not worker.connected:
        return "left" if has_left(worker.worker, worker.trouble) else "lost"
    if worker.job is None:
        return "idle"
    return "loading" if state.jobs[worker.job].state in (PLANNING, LOADING) else "running"


def _job_status(state: State, job: Job) -> JobStatus:
    moving = job.state in (RUNNING, COLLECTING)
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
    )

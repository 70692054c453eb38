"""What each worker is to its fleet, as `farflung status` says it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from farflung.broker.core.fleet.draining import waits_for
from farflung.broker.core.records import QUEUED, State, Worker
from farflung.protocol.fields import has_left, one_line
from farflung.protocol.viewer import DRAINING, JOINING, LEFT, READY, STANDBY, SUSPECT, TRAINING

LISTED_SECONDS = 86_400.0
MOST_LISTED = 50
"""Workers that have left are listed for a day, the newest so many."""


@dataclass(frozen=True)
class Membership:
    """The state of one worker, and what there is to say about it; `is_lost` if it left unasked."""

    state: str
    reason: str = ""
    is_lost: bool = False


def membership(
    state: State,
    worker: Worker,
    silent_seconds: float | None,
    suspect_seconds: float,
    joining: Collection[str] = (),
) -> Membership:
    """What a worker is, which was heard `silent_seconds` ago (None: not since the broker's start).

    The links of those that are `joining` are being measured.
    """
    if worker.away:
        return Membership(SUSPECT, one_line(f"it is expected to return: {worker.trouble}"))
    if not worker.connected:
        if removal := state.removed.get(worker.worker):
            return Membership(LEFT, one_line(f"it {removal.words}"))
        is_lost = not (worker.released or has_left(worker.worker, worker.trouble))
        return Membership(LEFT, worker.trouble, is_lost)
    if silent_seconds is not None and silent_seconds > suspect_seconds:
        return Membership(SUSPECT, f"it has been silent for {silent_seconds:.0f} s")
    if worker.leaving is not None:
        words = waits_for(state, worker)
        why = f"{worker.leaving.reason}; it waits {words}" if words else worker.leaving.reason
        return Membership(DRAINING, one_line(why))
    if worker.job is not None:
        return Membership(TRAINING)
    if copies := _copies_of(state, worker):
        return Membership(STANDBY, f"it holds copies of {copies}'s state")
    state_now = JOINING if worker.worker in joining else READY
    return Membership(state_now, one_line(_held_against(state, worker)))


def _held_against(state: State, worker: Worker) -> str:
    """Why an idle worker gets jobs last or not at all; empty if nothing is held against it."""
    suspicion = state.suspicions.get(worker.worker)
    if suspicion is None:
        return ""
    if state.is_suspended(worker.worker):
        return f"it gets no jobs until `farflung member allow {worker.worker}`: it {suspicion.words}"
    return f"it gets jobs only if others are too few: it {suspicion.words}"


def listed(state: State, now: float) -> list[Worker]:
    """The workers to list, by id: those that left are dropped after a while."""
    gone = [one for one in state.workers.values() if not (one.connected or one.away)]
    recent = [one for one in gone if one.gone_at is not None and now - one.gone_at <= LISTED_SECONDS]
    newest = sorted(recent, key=lambda one: one.gone_at or 0.0)[-MOST_LISTED:]
    there = [one for one in state.workers.values() if one.connected or one.away]
    return sorted([*there, *newest], key=lambda one: one.worker)


def _copies_of(state: State, worker: Worker) -> str:
    """A job that has workers, and of whose newest version this worker has a copy; or nothing."""
    for copy in worker.held:
        job = state.jobs.get(copy.job)
        versions = () if job is None else (job.versions.stable, job.versions.under_way)
        is_used = any(version is not None and version.name == copy.version for version in versions)
        if job is not None and is_used and not job.over and job.state != QUEUED:
            return job.job
    return ""

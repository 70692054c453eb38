"""Capture the model of a job that is to be trained, and tell the user what to know about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from farflung.client.options.merging import ONE_REPLICA
from farflung.client.options.planning import fewer_workers_advice
from farflung.client.options.target import Target, local_ids
from farflung.errors import JobError

if TYPE_CHECKING:
    from farflung.client.api.frontend import Frontend
    from farflung.client.api.job import Job
    from farflung.client.capture.prepared import Prepared


def capture_model(job: Job, target: Target, frontend: Frontend, emulated: Path | None = None) -> Prepared:
    """Capture the job's model and check that the target can train it.

    `emulated` is a file with a model that `farflung lab run --emulate-devices` has captured already.

    Raises
    ------
    CaptureError
        The model cannot become an OP-DAG, or has no values to train.
    JobError
        The items or the stored weights cannot be read, or `sync` is set and there are no replicas.
    PlanError
        The model cannot be cut for that many workers, there are fewer microbatches than replicas, or a local
        worker lacks one of the model's ops.
    """
    if job.sync is not None and target.wishes.replicas == 1:
        raise JobError(f"Job(sync=) {ONE_REPLICA}")
    if (replicas := target.wishes.replicas) > 1:
        from farflung.planner.replicas import require_possible

        require_possible(replicas, target.workers or replicas, job.microbatches)
    if emulated is not None:
        from farflung.client.capture.prepared import prepare_emulated

        return prepare_emulated(job, emulated.read_bytes())
    with fewer_workers_advice(target.asked_by, target.connected):
        prepared = _prepare(job, target.depth, frontend)
    _require_local_ops(prepared, target)
    return prepared


def _prepare(job: Job, workers: int, frontend: Frontend) -> Prepared:
    with frontend.capturing() as tell:
        tell("capturing the model")  # the import below takes a while, too
        from farflung.client.capture.prepared import prepare

        prepared = prepare(job, workers, tell)
    for remark in prepared.remarks:
        frontend.note(f"note: {remark}")
    return prepared


def _require_local_ops(prepared: Prepared, target: Target) -> None:
    """Refuse a model with an op that a local worker lacks: no other worker will join."""
    if not target.local or all(name == "torch" for name in target.frameworks):
        return
    from farflung.opdag.opset import version
    from farflung.planner.compatibility import Needs, require_able, unable
    from farflung.plans.ability import Ability
    from farflung.runtime.frameworks import backend_called

    offers = {name: backend_called(name).offer() for name in set(target.frameworks)}
    abilities = {}
    for number, id in enumerate(local_ids(target.local)):
        offer = offers[target.frameworks[number % len(target.frameworks)]]
        abilities[id] = Ability(version(), offer.lacks, offer.framework)
    require_able(target.local, target.local, unable(Needs.of(prepared.graph), abilities))

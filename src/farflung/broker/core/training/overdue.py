"""When a job that makes no progress is given up, even if all of its sessions are alive.

Deadlines follow from measured unit times (10 x the slowest so far). Before the first measurement they follow
from the bytes and FLOPs of the plan, at rates below those of any useful device or access line.
"""

from __future__ import annotations

from collections import Counter

from farflung.broker.core.records import COLLECTING, LOADING, PLANNING, RUNNING, Job

DROPPED_AFTER = 10.0
BYTES_PER_SECOND = 1e5
FLOPS_PER_SECOND = 1e9
TRAIN_FLOPS_PER_FORWARD = 3
COMPILE_SECONDS_PER_NODE = 1.2
"""What a worker allows itself for compiling (`worker/computing/task_deadlines.py`)."""


def overdue(job: Job, now: float, patience_seconds: float) -> str:
    """The reason to give the job up at `now`; empty if there is none.

    Every wait may last at least `patience_seconds`.
    """
    if job.state not in (PLANNING, LOADING, RUNNING, COLLECTING):
        return ""
    allowed = patience_seconds + _expected_seconds(job)
    waited = now - job.pace.moved_at
    return f"{_missing_text(job)} after {waited:.0f} s (allowed: {allowed:.0f} s)" if waited > allowed else ""


def _expected_seconds(job: Job) -> float:
    if job.plan is None:
        return 0.0
    weights = sum(part.parameter_bytes for part in job.plan.placements) / BYTES_PER_SECOND
    whole = (1 + job.training.optimizer.moments) * weights
    is_copying = job.copies.under_way is not None or job.versions.under_way is not None
    copy = whole if is_copying else 0.0  # it shares the lines with what is awaited
    if job.state == RUNNING:
        return copy + _unit_seconds(job)
    is_whole = job.checkpoint_end if job.state == COLLECTING else job.step > 0
    again = len(job.history.units) * _unit_seconds(job) if job.state == LOADING and job.replayers else 0.0
    return copy + again + compile_seconds(job) + (whole if is_whole else weights)


def compile_seconds(job: Job) -> float:
    """How long the worker with most nodes may compile while the job loads."""
    if job.state != LOADING or job.plan is None or not job.training.compiled:
        return 0.0
    nodes = Counter[str]()
    for part in job.plan.placements:
        nodes.update(dict.fromkeys(part.workers, part.nodes))
    return COMPILE_SECONDS_PER_NODE * max(nodes.values(), default=0)


def _unit_seconds(job: Job) -> float:
    assert job.plan is not None
    summed = sum(2 * one.bytes * (len(one.holders()) - 1) for one in job.plan.sums) / BYTES_PER_SECOND
    if job.unit is not None and job.unit.merges:
        return summed
    microbatches = job.training.microbatches if job.unit is None else job.unit.microbatches
    if job.pace.slowest is not None:
        return DROPPED_AFTER * job.pace.slowest * microbatches
    flops = TRAIN_FLOPS_PER_FORWARD * sum(part.flops for part in job.plan.placements)
    bytes_moved = 2 * sum(edge.bytes for edge in job.plan.edges)
    return microbatches * (flops / FLOPS_PER_SECOND + bytes_moved / BYTES_PER_SECOND) + summed


def late_workers(job: Job) -> list[str]:
    """The members that the job waits for, loading or at its current unit."""
    if job.state == LOADING:
        return [name for name in job.members if name not in job.loaded]
    if job.state != RUNNING:
        return []
    return list(job.members) if job.group is None else job.group.missing_workers()


def _missing_text(job: Job) -> str:
    if job.state == PLANNING:
        return "the planner gave no answer"
    if job.state == COLLECTING:
        return f"the submitter has not confirmed the weights of step {job.step}"
    missing = ", ".join(late_workers(job))
    if job.state == LOADING:
        return f"the job is still not loaded on {missing}"
    return f"step {job.step + 1} is not complete on {missing}"

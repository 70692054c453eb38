"""When the broker stops waiting for a job that no longer moves although every link is alive.

Deadlines follow from measured unit times (dropped after 10 x the slowest so far). Before there is a measure
they follow from what the plan has to move and compute, at rates below any device or line worth having.
"""

from __future__ import annotations

from farflung.broker.records import COLLECTING, LOADING, PLANNING, RUNNING, Job

DROPPED_AFTER = 10.0
BYTES_PER_SECOND = 1e5
FLOPS_PER_SECOND = 1e9
TRAIN_FLOPS_PER_FORWARD = 3


def overdue(job: Job, now: float, patience_seconds: float) -> str:
    """Why the job is given up at `now`, or nothing.

    `patience_seconds` is what every wait may last at least.
    """
    if job.state not in (PLANNING, LOADING, RUNNING, COLLECTING):
        return ""
    allowed = patience_seconds + _expected_seconds(job)
    waited = now - job.pace.moved_at
    return f"{_awaited(job)} for {waited:.0f} s (allowed: {allowed:.0f} s)" if waited > allowed else ""


def _expected_seconds(job: Job) -> float:
    if job.plan is None:
        return 0.0
    state_seconds = sum(part.parameter_bytes for part in job.plan.placements) / BYTES_PER_SECOND
    if job.unit is None:
        return state_seconds
    if job.pace.slowest is not None:
        return DROPPED_AFTER * job.pace.slowest * job.unit.microbatches
    flops = TRAIN_FLOPS_PER_FORWARD * sum(part.flops for part in job.plan.placements)
    bytes_moved = 2 * sum(edge.bytes for edge in job.plan.edges)
    return job.unit.microbatches * (flops / FLOPS_PER_SECOND + bytes_moved / BYTES_PER_SECOND)


def _awaited(job: Job) -> str:
    if job.state == PLANNING:
        return "the planner gave no answer"
    if job.state == LOADING:
        missing = [name for name in job.members if name not in job.loaded]
        return f"no word that the job is loaded from {', '.join(missing)}"
    if job.state == COLLECTING:
        return f"no word from the submitter that it holds the weights of step {job.step}"
    missing = list(job.members) if job.group is None else job.group.awaited()
    return f"no end of step {job.step + 1} from {', '.join(missing)}"

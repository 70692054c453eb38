"""The state of a job without copies on disks goes to its submitter before one of its workers leaves. Pure.

No worker has a copy where one worker alone has all of the state, or where a member's owner lets copies take
no disk. There a worker that leaves would give up all steps since the last checkpoint. So the submitter is
sent a copy, which it saves as a checkpoint, and no further unit is decided until it has: no step is lost.
"""

from __future__ import annotations

from farflung.broker.core import facts
from farflung.broker.core.records import RUNNING, Job, State
from farflung.broker.core.transition import Transition

MOST_REFUSED = 3
"""After so many copies in a row that the submitter could not save, no other one is sent."""


def comes_home(job: Job) -> bool:
    """Whether the state of a job that runs comes to its submitter before a worker leaves."""
    is_there = job.state == RUNNING and not job.held
    is_alone = not job.holders and not job.training.emulated
    return is_there and job.saves and is_alone and not job.unprotected and job.copies.refused < MOST_REFUSED


def is_home(job: Job) -> bool:
    """Whether the submitter has the state of the newest decided unit."""
    return job.copies.stable == job.next_unit


def ask(turn: Transition, job: Job) -> None:
    """Let a copy for the submitter follow the next step, unless one is on its way."""
    if job.copies.under_way is None and not job.copies.due:
        turn.emit(facts.CopyAsked(turn.now, job.job))


def holds(state: State, job: Job) -> bool:
    """Whether no unit is decided now: a member leaves, and the submitter gets or has the newest state."""
    leaves = any(state.workers[name].leaving for name in job.members)
    return leaves and comes_home(job) and (job.copies.under_way is not None or is_home(job))

"""When an attempt of a job fails, another one begins at the newest unit whose state the submitter has."""

from __future__ import annotations

from farflung.broker.core import facts, jobs
from farflung.broker.core.events import Send
from farflung.broker.core.records import COLLECTING, DONE, FAILED, PLANNING, Job
from farflung.broker.core.transition import Transition
from farflung.protocol.fields import one_line
from farflung.protocol.messages import RolledBack, Stop
from farflung.text import count_of

MOST_FRUITLESS = 5
"""After so many attempts in a row that got no further the job ends: others would fail in the same way."""


def give_up(turn: Transition, job: Job, reason: str) -> None:
    """End an attempt that cannot go on; another one follows.

    While the job is planned no worker has heard of the attempt, so it is only queued again. The job ends if
    the user has stopped it, or if too many attempts have failed.
    """
    if job.state == PLANNING:
        turn.emit(facts.JobRequeued(turn.now, job.job, one_line(reason)))
    elif job.state == COLLECTING and job.ending != DONE:
        jobs.end(turn, job, job.ending, f"{job.reason}; its weights are not complete: {reason}")
    elif job.recovery.fruitless + 1 >= MOST_FRUITLESS and not _got_further(job):
        attempts = count_of(MOST_FRUITLESS, "attempt")
        jobs.end(turn, job, FAILED, f"{reason}; {attempts} in a row ended without a new step")
    else:
        _roll_back(turn, job, one_line(reason))


def fail(turn: Transition, job: Job, reason: str) -> None:
    """End a job whose error would come again."""
    kept = f"; {job.step} of {job.training.steps} steps were applied" if job.step else ""
    jobs.end(turn, job, FAILED, reason + kept)


def cannot_be_planned(turn: Transition, job: Job, reason: str) -> None:
    """End a job that cannot be planned; one that ran before waits for other workers."""
    if job.recovery.failed:
        why = f"the job cannot go on with the workers that are left: {reason}"
        turn.emit(facts.JobRequeued(turn.now, job.job, one_line(why), unfit=list(job.members)))
    else:
        jobs.end(turn, job, FAILED, reason)


def _roll_back(turn: Transition, job: Job, reason: str) -> None:
    """Free the workers and queue the job again, at the newest unit whose state the submitter has."""
    unit = job.copies.stable
    is_over = job.unit is None
    turn.emit(facts.JobRolledBack(turn.now, job.job, job.attempt, unit, reason, is_over))
    for name in job.members:
        if turn.state.workers[name].connected:
            turn.do(Send(name, Stop(job.job, job.attempt, reason)))
    step = turn.state.jobs[job.job].step
    turn.tell(job.job, RolledBack(job.job, job.attempt, unit, step, reason))


def _got_further(job: Job) -> bool:
    """Whether the attempt has begun a unit that no earlier one had."""
    return job.began > job.recovery.reached

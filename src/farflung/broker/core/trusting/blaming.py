"""Workers that make attempts of jobs fail: jobs go on without them, and if they can, suspect them. Pure.

A worker that refuses what it is to load, or whose segment fails, may be at fault, or the job may be: its
model or its data. So the job goes on without the worker where others can take its place. If it gets past the
unit at which it failed, the worker was at fault, and is *suspected*: jobs use others first, and after some
suspicions not this one at all, until an operator allows it (dask counts suspicions of tasks in the same way).
If others fail alike, the job ends.

A worker that says it failed on what the submitter sent is not suspected, and one that says it failed on what
another worker sent has that one blamed in its place. The broker cannot check either.
"""

from __future__ import annotations

from farflung.broker.core import facts
from farflung.broker.core.records import LOADING, Job, State
from farflung.broker.core.recovering import recovery
from farflung.broker.core.training import job_queue
from farflung.broker.core.training.overdue import compile_seconds, late_workers
from farflung.broker.core.transition import Transition
from farflung.protocol.fields import one_line
from farflung.protocol.messages import Broken, Stalled
from farflung.text import and_more

MOST_BLAMED = 3
"""A job ends when so many workers in a row made it fail: it is to blame then, or the fleet is hopeless."""


def on_segment_failure(turn: Transition, job: Job, worker: str, message: Broken, why: str) -> None:
    """A segment failed on a worker, maybe on what another one sent: go on without who is at fault."""
    if message.sender in job.members:
        on_failure(turn, job, message.sender, message.reason, why)
    else:
        on_failure(turn, job, worker, message.reason, why, excused=message.sender == job.submitter)


def on_failure(turn: Transition, job: Job, worker: str, reason: str, why: str, excused: bool = False) -> None:
    """A worker made the attempt fail: go on without it, or end the job if that would not help.

    `reason` is what the worker says, `why` the whole sentence. If `excused`, it will not be suspected.
    """
    reason, others = one_line(reason), [name for name in job.blamed if name != worker]
    alike = [name for name in others if job.blamed[name].reason == reason]
    if alike:
        recovery.fail(turn, job, f"{why}; so did {and_more(alike)} before")
    elif len(others) + 1 >= MOST_BLAMED:
        recovery.fail(turn, job, f"{why}; {and_more(others)} made it fail before")
    elif not _can_do_without(turn.state, job, worker):
        recovery.fail(turn, job, why)
    else:
        blame(turn, job, worker, reason, excused)
        recovery.go_on_without(turn, turn.state.jobs[job.job], why)


def on_overdue(turn: Transition, job: Job, why: str) -> None:
    """A deadline is over. If one member alone keeps all others waiting, go on without it if others can.

    Where several are late, some may only wait for others; and a job that regroups has not loaded anew.
    """
    late = late_workers(job)
    if len(late) == 1 and not job.keeps and _may_replace(turn.state, job, late[0]):
        blame(turn, job, late[0], why)
        recovery.go_on_without(turn, turn.state.jobs[job.job], why)
    else:
        recovery.give_up(turn, job, why)


def on_stalled(turn: Transition, job: Job, message: Stalled, patience_seconds: float) -> None:
    """The submitter says which workers get no further while they load: go on without one, if others can.

    Where several stall, a line may have failed that they share, and where workers load from elsewhere the
    submitter knows nothing of it. One that compiles may take as long as that takes. Its word alone makes no
    worker suspected.
    """
    if message.attempt != job.attempt or job.state != LOADING or job.restores or job.replayers:
        return
    allowed, loading = patience_seconds + compile_seconds(job), turn.now - job.pace.moved_at
    stalled = [one for one in late_workers(job) if min(message.seconds.get(one, 0), loading) >= allowed]
    if len(stalled) == 1 and _may_replace(turn.state, job, stalled[0]):
        why = f"worker {stalled[0]} has not loaded, and got no further for {message.seconds[stalled[0]]} s"
        blame(turn, job, stalled[0], why, excused=True)
        recovery.go_on_without(turn, turn.state.jobs[job.job], why)


def _may_replace(state: State, job: Job, worker: str) -> bool:
    """Whether a job that a member keeps waiting can go on without it."""
    is_one_of_many = len(job.members) > 1 and len(job.blamed) + 1 < MOST_BLAMED
    return is_one_of_many and _can_do_without(state, job, worker)


def blame(turn: Transition, job: Job, worker: str, reason: str, excused: bool = False) -> None:
    """Note that a worker made the job's attempt fail: the job uses it no more."""
    turn.emit(facts.WorkerBlamed(turn.now, job.job, worker, job.next_unit, one_line(reason), excused))


def settle(turn: Transition) -> None:
    """Suspect the workers without which a job has just got past the unit at which they made it fail."""
    for fact in list(turn.facts):
        if not isinstance(fact, facts.UnitDecided):
            continue
        job = turn.state.jobs[fact.job]
        for worker, one in sorted(job.blamed.items()):
            if fact.unit >= one.unit and worker not in job.members and not one.excused:
                turn.emit(facts.WorkerSuspected(turn.now, job.job, worker, one.reason))


def _can_do_without(state: State, job: Job, worker: str) -> bool:
    """Whether enough other workers are there, idle or not, that could run the job."""
    return len(job_queue.within_reach(state, job) - {worker}) >= job_queue.needed(job)

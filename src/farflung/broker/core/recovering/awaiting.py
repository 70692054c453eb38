"""Lost members that a job awaits with their disks, while the others keep their state.

If no other worker can take a lost one's place, its own disk still has its share. So the attempt ends, the
others hold their state and what they sent, and once all that are *awaited* are back they replay
(`replaying`). If the job could go on without them it waits no longer than for a lost worker's return to the
queue; else as long as its patience lasts.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from farflung.broker.core import facts
from farflung.broker.core.records import DONE, FAILED, LOADING, PLANNING, QUEUED, Job, State
from farflung.broker.core.recovering import recovery, replaying, restoring
from farflung.broker.core.recovering.replaying import Takeover
from farflung.broker.core.training import job_queue, jobs
from farflung.broker.core.transition import Transition
from farflung.protocol.fields import one_line
from farflung.protocol.registration import Device
from farflung.protocol.submitter import UNTIL, waiting_for
from farflung.text import and_more, duration_words, format_utc


def may_await(state: State, job: Job, name: str) -> bool:
    """Whether a member that is lost is better awaited: no others can take its place, and its disk can."""
    worker, gone = state.workers[name], {name, *absent(state, job)}
    if not worker.device.kernels or worker.leaving is not None or job.ending not in ("", DONE):
        return False
    if job.state in (QUEUED, PLANNING) or (job.state == LOADING and not job.keeps):
        return False
    if recovery.is_in_vain(job) or isinstance(replaying.takeover(state, job, gone), Takeover):
        return False
    return job_queue.seating(job_queue.freed(state, job, gone), job) is None and _can_come_back(
        state, job, gone
    )


def begin(turn: Transition, job: Job, name: str, reason: str) -> None:
    """End the attempt; the next one begins when all are back that are awaited."""
    awaited = [one for one in job.members if one == name or one in job.awaited]
    turn.emit(facts.JobRegrouped(turn.now, job.job, job.attempt + 1, one_line(reason), awaited))


def absent(state: State, job: Job) -> list[str]:
    """The members that the job awaits, and that are not there."""
    return [name for name in job.awaited if not state.workers[name].connected]


def awaits(state: State, name: str) -> str:
    """The job that awaits a worker; empty if none does."""
    job = state.workers[name].job
    return job if job is not None and name in state.jobs[job].awaited else ""


def returns_to(state: State, name: str, device: Device) -> bool:
    """Whether the job of a worker that registers awaits it, and it still computes just alike."""
    known = state.workers.get(name)
    if known is None or known.job is None or not awaits(state, name):
        return False
    return restoring.fits(replace(known, device=device), known, state.jobs[known.job], is_alike=True)


def end(turn: Transition, job: Job, why: str) -> None:
    """Await no one any longer: the attempt is over, and all members go back."""
    jobs.lose_awaited(turn, job)
    is_its_own = bool(job.reason) and not job.ending  # else it is that of the job's end
    recovery.give_up(turn, job, f"{job.reason}; {why}" if is_its_own else why)


def resume(turn: Transition) -> None:
    """Let jobs go on whose awaited members are back, or have successors; others go back at last."""
    for job in list(turn.state.jobs.values()):
        if not job.awaited:
            continue
        gone = absent(turn.state, job)
        found = replaying.takeover(turn.state, job, gone)
        if isinstance(found, Takeover):
            jobs.lose_awaited(turn, job)
            why = f"{and_more(job.awaited)} {'was' if len(job.awaited) == 1 else 'were'} lost"
            recovery.take_over(turn, job, found, why if job.ending or not job.reason else job.reason)
        elif not _can_come_back(turn.state, job, gone):
            end(turn, job, f"all members go back, as {found.reason}")


def on_tick(turn: Transition, least_seconds: float) -> None:
    """Wait no longer than `least_seconds` if a job can go on without those it awaits, else its patience."""
    for job in list(turn.state.jobs.values()):
        gone = absent(turn.state, job)
        if not gone:
            continue
        waited = turn.now - min(turn.now, _away_since(turn.state, gone))
        freed = job_queue.freed(turn.state, job, gone)
        why = f"{and_more(gone, job_queue.NAMED)} did not come back within {duration_words(round(waited))}"
        if waited > job.patience_seconds:
            words = "`farflung train --resume` goes on from a checkpoint, if there is one"
            jobs.end(turn, job, FAILED, f"{job.reason}; {why}: {words}")
        elif waited > least_seconds and (job_queue.can_go_on(freed, job) or job.ending not in ("", DONE)):
            is_same_plan = job_queue.seating(freed, job) is not None
            end(turn, job, why)
            queued = turn.state.jobs[job.job]
            if job_queue.waits_for_version(queued) and not is_same_plan:
                job_queue.give_plan_up(turn, queued, why)


def words_of(state: State, job: Job) -> str:
    """Whom the job awaits, in words; empty if no one."""
    gone = absent(state, job)
    if not gone:
        return ""
    names, disks = and_more(gone, job_queue.NAMED), "its disk" if len(gone) == 1 else "their disks"
    like = "another one like it" if len(gone) == 1 else "others like them"
    without = ""
    if job_queue.can_go_on(job_queue.freed(state, job, gone), job):
        without = f" (or to go on without, after {duration_words(state.replace_seconds)})"
    since = _away_since(state, gone)
    until = "" if since == math.inf else f", {UNTIL} {format_utc(since + job.patience_seconds)}"
    words = f"{waiting_for(names)} to return with {disks}, or {like}{without}{until}"
    return one_line(f"{words}: the others keep their state")


def _away_since(state: State, gone: Collection[str]) -> float:
    """Since when the first of them is away."""
    return min(state.workers[name].away_since or math.inf for name in gone)


def _can_come_back(state: State, job: Job, gone: Collection[str]) -> bool:
    """Whether the others keep their state if those that are `gone` come back with their disks alone."""
    for name in gone:
        back = replace(state.workers[name], connected=True, job=job.job, away_since=None)
        state = state.with_worker(back)
    again = job.without_state | set(gone)
    paused = replace(job, state=LOADING, keeps=True, replayers=tuple(sorted(again)), loaded=frozenset())
    return isinstance(replaying.takeover(state, paused), Takeover)

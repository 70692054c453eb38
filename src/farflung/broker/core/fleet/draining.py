"""Workers that leave in good order: who takes their shares, and when they may go. Pure.

A worker that is to leave takes no job. Its share of a job that runs goes to an idle worker as a lost one's
would (`replaying`), but from a copy that is made for it, and between two units: so the other members lose
nothing, not even the unit in flight. It may go once each copy on its disk that a job needs lies on two
others. If no worker can take its share it stays, and at its deadline it leaves all the same. Until then the
job goes back only to a version that was decided after it asked: no step before that is lost. Where there are
no versions, such as with one worker alone, the state comes to the submitter first (`homecoming`).
"""

from __future__ import annotations

from farflung.broker.core import facts
from farflung.broker.core.events import Reply, Send
from farflung.broker.core.protecting import homecoming, protection
from farflung.broker.core.records import COLLECTING, LOADING, PLANNING, QUEUED, RUNNING, Job, State, Worker
from farflung.broker.core.recovering import mending, recovery, replaying
from farflung.broker.core.recovering.mending import Mending
from farflung.broker.core.recovering.replaying import Obstacle, Takeover
from farflung.broker.core.training import job_queue, jobs
from farflung.broker.core.transition import Transition
from farflung.protocol.fields import one_line
from farflung.protocol.membership import Draining, Released
from farflung.protocol.messages import Denied, Stop
from farflung.text import duration_words

OWN_WISH = "its owner stops it"
IN_ORDER = "it left in good order"

RECENT_UNITS = 3
"""A version so many units old serves as a fresh one: its successor soon has run them again."""


def begin(turn: Transition, name: str, within_seconds: float, reason: str) -> None:
    """Let a worker leave, with 0 at once; if it does so already, its deadline can only come closer."""
    worker, deadline = turn.state.workers[name], turn.now + within_seconds
    if worker.released or not (worker.connected or worker.away):
        return
    if worker.leaving is None or deadline < worker.leaving.deadline:
        reason = one_line(reason if worker.leaving is None else worker.leaving.reason)
        turn.emit(facts.WorkerLeaving(turn.now, name, reason, deadline))
    on_tick(turn)


def ask(turn: Transition, name: str, within_seconds: float, operator: str) -> None:
    """Let a worker leave because an operator asks for it, and answer the operator."""
    worker = turn.state.workers.get(name)
    if worker is None:
        turn.do(Reply(Denied(f"no worker {name} has joined this broker: `farflung status` lists them")))
        return
    if not (worker.connected or worker.away):
        turn.do(Reply(Denied(f"worker {name} is not connected: {worker.trouble}")))
        return
    begin(turn, name, within_seconds, f"operator {operator} asks for it")
    turn.do(Reply(Draining(name, waits_for(turn.state, turn.state.workers[name]))))


def on_tick(turn: Transition) -> None:
    """Let workers go whose time to hand over is up."""
    for name in _leaving(turn.state):
        worker = turn.state.workers[name]
        if worker.leaving is not None and turn.now >= worker.leaving.deadline:
            _leave_at_last(turn, worker)


def hand_over(turn: Transition) -> None:
    """Give the shares of workers that leave to others, as far as that is possible now."""
    for name in _leaving(turn.state):
        worker = turn.state.workers[name]
        if worker.job is not None:
            _hand_over(turn, turn.state.jobs[worker.job], worker)


def release(turn: Transition) -> None:
    """Let workers go that no job needs any more."""
    for name in _leaving(turn.state):
        worker = turn.state.workers[name]
        if worker.job is None and not _sole_copies(turn.state, worker):
            assert worker.leaving is not None
            _release(turn, name, f"{IN_ORDER}: {worker.leaving.reason}")


def waits_for(state: State, worker: Worker) -> str:
    """What a worker that leaves waits for, in words; empty if nothing is known to be missing."""
    if worker.leaving is None:
        return ""
    if worker.job is None:
        sole = _sole_copies(state, worker)
        if sole and state.jobs[sole].state == QUEUED:
            return f"until another worker has the copies of {sole}'s state that it alone has"
        return f"until its copies of {sole}'s state lie with two others" if sole else ""
    job = state.jobs[worker.job]
    if job.state == COLLECTING:
        return f"until {job.job} has sent its weights"
    if job.held:
        return f"for the submitter of {job.job}"
    if (job.state == LOADING and job.keeps) or state.away_for(job):
        return f"until {job.job} runs"
    if _mended_without(state, job, worker.worker) is not None:
        return f"for the end of a step of {job.job}"
    if homecoming.comes_home(job):
        return f"until the state of {job.job} has come to its submitter"
    if _awaits_version(job, worker.leaving.since):
        return f"for copies of {job.job}'s state"
    can_restore = _can_restore_without(state, job)
    is_taken = isinstance(replaying.takeover(state, job, {worker.worker}), Takeover)
    if is_taken or (can_restore and _is_fresh(job, worker.leaving.since)):
        return f"for the end of a step of {job.job}"
    if can_restore:
        trouble = job.unprotected or job.versions.trouble
        return f"for copies of {job.job}'s state{trouble and f' ({trouble})'}"
    return f"for a worker that can take its share of {job.job}"


def _leaving(state: State) -> list[str]:
    """The workers that leave and are connected, the first that began to first."""
    found = [(one.leaving.since, one.worker) for one in state.workers.values() if one.leaving is not None]
    return [name for _, name in sorted(found) if state.workers[name].connected]


def _hand_over(turn: Transition, job: Job, worker: Worker) -> None:
    assert worker.leaving is not None
    name, why = worker.worker, f"worker {worker.worker} leaves in good order ({worker.leaving.reason})"
    is_between_units = job.state == RUNNING and not job.held and _is_between_units(turn, job)
    if job.state == PLANNING:
        recovery.give_up(turn, job, "")
    elif is_between_units and (mended := _mended_without(turn.state, job, name)) is not None:
        recovery.mend(turn, job, mended, why, in_order=True)
    elif job.state == LOADING and not job.keeps:
        if _can_begin_without(turn.state, job):
            _begin_without(turn, job, why)
    elif homecoming.comes_home(job):
        if homecoming.is_home(job):
            _begin_without(turn, job, why)
        else:
            homecoming.ask(turn, job)
    elif is_between_units:
        if _awaits_version(job, worker.leaving.since):
            return
        found = replaying.takeover(turn.state, job, {name})
        if isinstance(found, Takeover):
            recovery.take_over(turn, job, found, why, in_order=True)
            words = f"{replaying.taker_of(job, found)} takes its share"
            turn.do(Send(name, Stop(job.job, job.attempt, words)))
        elif _is_fresh(job, worker.leaving.since) and _can_restore_without(turn.state, job):
            _begin_without(turn, job, why)


def _mended_without(state: State, job: Job, name: str) -> Mending | None:
    """How the job goes on without a member and with as many pipelines, if it can."""
    found = mending.mending(state, job, {name})
    if (
        isinstance(found, Obstacle)
        or job.plan is None
        or found.plan.live_pipelines() != job.plan.live_pipelines()
    ):
        return None
    return found


def _begin_without(turn: Transition, job: Job, why: str) -> None:
    """End the attempt: the next one begins with the newest version, on another plan if that needs one."""
    is_same_plan = job_queue.seating(job_queue.freed(turn.state, job), job) is not None
    recovery.drop(turn, job, why, in_order=True)
    queued = turn.state.jobs[job.job]
    if job_queue.waits_for_version(queued) and not is_same_plan:
        job_queue.give_plan_up(turn, queued, why)


def _is_between_units(turn: Transition, job: Job) -> bool:
    """Whether a unit of the job has just been decided, so that none is in flight."""
    decided = (fact for fact in turn.facts if isinstance(fact, facts.UnitDecided))
    return any(fact.job == job.job for fact in decided)


def _awaits_version(job: Job, since: float) -> bool:
    """Whether the newest version is not recent, but another one is on its way or will be."""
    versions, stable = job.versions, job.versions.stable
    if stable is not None and job.next_unit - stable.next_unit <= RECENT_UNITS:
        return False
    if versions.under_way is not None:
        return True
    is_due = not _is_fresh(job, since) and versions.not_before <= since
    return bool(job.holders) and not job.unprotected and is_due


def _is_fresh(job: Job, since: float) -> bool:
    """Whether the newest stable version was decided at `since` or later."""
    stable = job.versions.stable
    return stable is not None and stable.at >= since


def _can_restore_without(state: State, job: Job) -> bool:
    """Whether others can go on from the job's newest version if the attempt ends now."""
    can = job_queue.can_go_on(job_queue.freed(state, job), job)
    return can and protection.version_to_restore(job) is not None


def _can_begin_without(state: State, job: Job) -> bool:
    """Whether others can load what a job that is loading begins with."""
    if protection.version_to_restore(job) is not None:
        return _can_restore_without(state, job)
    usable = job_queue.usable_for(job_queue.freed(state, job), job)
    return len(usable) >= (job.asked or len(job.on) or 1)


def _sole_copies(state: State, worker: Worker) -> str:
    """A job that loads or runs and has a copy on this worker's disk, but not on two others; or nothing.

    Where only one other worker is there, its copy is enough. So is one for a job that waits in the queue:
    its copies do not move until it runs.
    """
    others_there = [one for one in state.workers.values() if one.connected and one.worker != worker.worker]
    enough = min(2, max(1, len(others_there)))
    for name in sorted({copy.job for copy in worker.held}):
        job = state.jobs.get(name)
        if job is None or job.over or job.plan is None:
            continue
        is_queued = job.state == QUEUED
        version = protection.version_to_restore(job) if is_queued else job.versions.stable
        if version is None:
            continue
        for share in version.names_by_share(job.plan, job.owned):
            having = protection.who_has(state, job, version, share)
            others = [one for one in having if state.workers[one].connected and one != worker.worker]
            if worker.worker in having and len(others) < (1 if is_queued else enough):
                return name
    return ""


def _leave_at_last(turn: Transition, worker: Worker) -> None:
    """The time to hand over is up: the worker leaves with what it has."""
    assert worker.leaving is not None
    waited = round(worker.leaving.deadline - worker.leaving.since)
    within = f" within {duration_words(waited)}" if waited else ""
    if worker.job is None:
        sole = _sole_copies(turn.state, worker)
        lack = f"its copies of {sole}'s state did not come to two others{within}"
        _release(turn, worker.worker, lack if sole else IN_ORDER, not sole)
        return
    job_left = turn.state.jobs[worker.job]
    why = f"worker {worker.worker} left {jobs.moment(job_left)}: it handed over no share{within}"
    _release(
        turn, worker.worker, f"it left with its share of {worker.job}, which no worker took{within}", False
    )
    recovery.worker_lost(turn, job_left, worker.worker, why)


def _release(turn: Transition, name: str, reason: str, in_order: bool = True) -> None:
    turn.emit(facts.WorkerReleased(turn.now, name, one_line(reason), in_order))
    turn.do(Send(name, Released(one_line(reason), in_order)))

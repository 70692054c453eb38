"""Workers that return: to a broker that was restarted, or over another session.

A worker says which attempt it still holds (`Standing`). If the job still needs it there, it gets what it
lacks; else it is stopped. What only it can know, such as its `UnitReady`, it says again by itself.
"""

from __future__ import annotations

from farflung.broker.core import facts
from farflung.broker.core.events import ReadTuning, Send
from farflung.broker.core.protecting import protection, standbys
from farflung.broker.core.records import COLLECTING, LOADING, PLANNING, QUEUED, RUNNING, Job, State, Worker
from farflung.broker.core.recovering import awaiting, recovery
from farflung.broker.core.training import job_queue, jobs, loads
from farflung.broker.core.transition import Transition
from farflung.broker.core.trusting import checkers
from farflung.protocol.fields import has_left, one_line
from farflung.protocol.messages import Accepted, Begin, Decide, SendState, Stop
from farflung.protocol.registration import Standing
from farflung.protocol.submitter import waiting_for
from farflung.text import and_more


def on_restart(turn: Transition) -> None:
    """Wait for those who were there before the broker was restarted: jobs stand, and their workers return."""
    for job in [job for job in turn.state.jobs.values() if not job.over]:
        if job.state == PLANNING:  # its planner is gone, and no worker has heard of the attempt
            turn.emit(facts.JobRequeued(turn.now, job.job, ""))
        if not job.held:
            turn.emit(facts.SubmitterAway(turn.now, job.job, "the broker was restarted"))
        protection.on_restart(turn, turn.state.jobs[job.job])
        if job.blobs.steering is not None and job.state in (LOADING, RUNNING):
            turn.do(ReadTuning(job.job, job.attempt, job.blobs.steering))
    for worker in list(turn.state.workers.values()):
        if worker.connected or worker.job is not None:
            turn.emit(facts.WorkerAway(turn.now, worker.worker, "the broker was restarted"))


def trouble(state: State, worker: Worker, standing: Standing | None) -> str:
    """Why a worker that returns with `standing` cannot go on in the job that it is assigned to.

    Empty if it can, or has no job.
    """
    if worker.job is None:
        return ""
    job = state.jobs[worker.job]
    if not _is_of(standing, job) and not _keeps(job, worker.worker):
        had_nothing = job.state in (PLANNING, LOADING) and worker.worker not in job.loaded
        return "" if had_nothing else "it came back without its part of the job"
    if (
        standing is not None
        and standing.phase == "loading"
        and worker.worker in {*job.replayers, *job.newcomers}
    ):
        return "" if job.state == LOADING else "it came back without its part of the job"
    if standing is None or standing.job != job.job or standing.attempt > job.attempt:
        return "it came back without its part of the job"
    if standing.phase == "loading" and not (job.state == LOADING and _is_of(standing, job)):
        return "it came back without its part of the job"
    return _apart(job, standing)


def _apart(job: Job, standing: Standing) -> str:
    """Why what a worker holds of the job is not what the log says; empty if it is, or one decision behind."""
    following = job.next_unit
    is_ahead = standing.unit > following
    if _is_of(standing, job):
        is_ahead |= standing.phase == "collecting" and job.state != COLLECTING
        is_ahead |= standing.phase == "running" and job.state == LOADING
    if is_ahead:
        return (
            f"it has come to unit {standing.unit}, and the broker's log only to unit {following}: the broker "
            "was restored from a backup, or its disk lost what was written last"
        )
    if standing.unit < following and _decision_for(job, standing) is None:
        return f"it came back at unit {standing.unit}, but unit {following} is the next"
    return ""


def stop_foreign(turn: Transition, worker: str, standing: Standing | None) -> None:
    """Stop what a worker holds and no job needs: it may say no more about it."""
    if standing is None:
        return
    job = turn.state.jobs.get(standing.job)
    if (
        job is not None
        and turn.state.workers[worker].job == job.job
        and (_is_of(standing, job) or _keeps(job, worker))
    ):
        return
    if job is None:
        why = f"this broker has no {standing.job}"
    elif job.over:
        why = f"it is {job.state}: {job.reason}" if job.reason else f"it is {job.state}"
    else:
        why = f"attempt {standing.attempt} is over"
    is_over = job is not None and job.over
    turn.do(Send(worker, Stop(standing.job, standing.attempt, one_line(why), is_over)))


def take_up(turn: Transition, name: str, standing: Standing | None) -> None:
    """Give a worker that has returned to its job what it lacks there."""
    worker = turn.state.workers[name]
    if worker.job is None:
        return
    job = turn.state.jobs[worker.job]
    if name in job.awaited:
        return  # it hears what to do once all are back
    if standing is None or not (_keeps(job, name) or _is_of(standing, job)):
        if job.state == LOADING:
            turn.do(loads.load_of(turn.state, job, name))
        return
    if decision := _decision_for(job, standing):
        turn.do(Send(name, decision))
    if job.holders and _is_of(standing, job):
        turn.do(Send(name, standbys.standbys_of(turn.state, job, name)))
    if not _is_of(standing, job):
        turn.do(Send(name, recovery.continue_of(turn.state, job, name)))
    elif job.state == LOADING and standing.phase == "loaded":
        jobs.worker_loaded(turn, job, name)
    elif job.state == LOADING and (lost := _lost_copy(turn.state, job, name)) is not None:
        # It has said so, to a broker or over a link that was gone.
        reason = f"the copy of share {lost} on worker {name} is lost: it is not on its disk"
        recovery.give_up(turn, job, one_line(reason))
    elif standing.phase == "broken":
        return  # it says why by itself
    elif job.state == RUNNING and standing.phase == "loaded":
        turn.do(Send(name, Begin(job.job, job.attempt)))
    elif job.state == COLLECTING and standing.phase != "collecting":
        turn.do(Send(name, SendState(job.job, job.attempt, job.checkpoint_end)))


def _lost_copy(state: State, job: Job, name: str) -> int | None:
    """A share of the version that a member is to load or give from its own disk, where it is not any more."""
    load = loads.load_of(state, job, name).load
    if load.version is None:
        return None
    gives = [share for donor, _, share in load.gifts if donor == name]
    reads = [share for share, donor in load.shares_for(name).items() if donor == name]
    has = {
        copy.share for copy in state.workers[name].held if (copy.job, copy.version) == (job.job, load.version)
    }
    return next((share for share in (*reads, *gives) if share not in has), None)


def on_tick(turn: Transition, return_seconds: float) -> None:
    """Count workers as lost that have not returned in time."""
    for worker in list(turn.state.workers.values()):
        is_awaited = worker.job is not None and worker.worker in turn.state.jobs[worker.job].awaited
        if is_awaited:
            continue  # see `awaiting`
        if worker.away_since is not None and worker.away and turn.now - worker.away_since > return_seconds:
            reason = f"it did not return within {return_seconds:g} s ({worker.trouble})"
            lose(turn, worker.worker, reason)


def lose(turn: Transition, name: str, reason: str) -> None:
    """Count a worker as lost, and give up the attempt that it has a part in; or await it, with its disk."""
    job = turn.state.workers[name].job
    reason = one_line(reason)
    if job is None:
        turn.emit(facts.WorkerLost(turn.now, name, reason))
        standbys.lost(turn, name)
        return
    lost_job, is_left = turn.state.jobs[job], has_left(name, reason)
    if name in lost_job.awaited:
        turn.emit(facts.WorkerAway(turn.now, name, reason))
        return
    why = f"worker {name} {'left' if is_left else 'was lost'} {jobs.moment(lost_job)}: {reason}"
    if not is_left and awaiting.may_await(turn.state, lost_job, name):
        turn.emit(facts.WorkerAway(turn.now, name, reason))
        awaiting.begin(turn, lost_job, name, why)
        return
    turn.emit(facts.WorkerLost(turn.now, name, reason))
    recovery.worker_lost(turn, turn.state.jobs[job], name, why)


def explain(turn: Transition) -> None:
    """Say of each job that has workers whom it waits for: members, its submitter or a checker."""
    for job in list(turn.state.jobs.values()):
        if job.over or job.state == QUEUED:
            continue
        words = words_of(turn.state, job)
        if words != job.words:
            turn.emit(facts.WaitExplained(job.job, words))
            away = [] if job.held else turn.state.away_for(job)
            lacking = not (away or job.held) and checkers.lacks_one(turn.state, job)
            goes_on = bool(job.words) and job.state != PLANNING and not job.held
            if words or goes_on:
                turn.tell(job.job, Accepted(job.job, words or job.state, lacking, away=away))


def words_of(state: State, job: Job) -> str:
    """Whom the job waits for, in words; empty if all it needs are there."""
    if words := awaiting.words_of(state, job):
        return words
    away = state.away_for(job)
    if away:
        return one_line(f"{waiting_for(and_more(away, job_queue.NAMED))} to return")
    return job_queue.held_words(job) if job.held else checkers.waiting_words(state, job)


def _keeps(job: Job, worker: str) -> bool:
    """Whether a member goes on in the current attempt with what it held in the one before."""
    return job.keeps and worker not in job.replayers and worker not in job.newcomers


def _is_of(standing: Standing | None, job: Job) -> bool:
    return standing is not None and (standing.job, standing.attempt) == (job.job, job.attempt)


def _decision_for(job: Job, standing: Standing) -> Decide | None:
    """The decision that a worker has not applied yet, if it may be sent again."""
    place = (standing.attempt, standing.unit)
    return next((one for one in job.decisions if (one.attempt, one.unit) == place), None)

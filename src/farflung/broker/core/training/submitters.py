"""Submitters that leave and return: a job stands while no session holds it.

A session of its submitter *holds* a job. When that session ends, the job is held by the broker: it goes on
as far as its inputs last, keeps its workers for a while, and waits for its submitter as long as `Submit`
allows.
"""

from __future__ import annotations

import math

from farflung.broker.core import facts
from farflung.broker.core.events import Hold, Reply, SubmitterMessage
from farflung.broker.core.records import (
    COLLECTING,
    FAILED,
    LOADING,
    PLANNING,
    RUNNING,
    Job,
    Result,
    State,
)
from farflung.broker.core.recovering import recovery
from farflung.broker.core.recovering.returns import words_of
from farflung.broker.core.training import job_queue, jobs, loads
from farflung.broker.core.transition import Transition
from farflung.protocol.fields import one_line
from farflung.protocol.messages import (
    Accepted,
    Cancel,
    Denied,
    Message,
    Return,
    RolledBack,
    Running,
    Submit,
    UnitDone,
)
from farflung.text import format_seconds

LINKLESS = "the submitter returned without its links to the workers"


def submitted_before(state: State, submitter: str, message: Submit) -> Job | None:
    """The job that an equal `Submit` of the same run made, while it is not over."""
    if not message.run:
        return None
    for job in state.jobs.values():
        is_same = (job.submitter, job.run, job.earlier) == (submitter, message.run, message.attempts)
        if is_same and not job.over:
            return job
    return None


def denial(job: Job, event: SubmitterMessage) -> Denied | None:
    """Why the sender may not say this of the job: another session holds it, or its own does not yet."""
    if (silent := event.elsewhere.get(job.job)) is not None:
        return _another_holds(job, silent)
    if job.held and not isinstance(event.message, Cancel):
        return Denied(f"the broker holds {job.job}: take its place first (`farflung train --resume`)")
    return None


def leave(turn: Transition, job: Job, reason: str) -> None:
    """Hold a job whose submitter's session has ended; an attempt that has not reached a worker ends."""
    turn.emit(facts.SubmitterAway(turn.now, job.job, one_line(reason)))
    if job.state == PLANNING:
        recovery.give_up(turn, turn.state.jobs[job.job], "")


def take_place(turn: Transition, job: Job, message: Return, event: SubmitterMessage) -> None:
    """Let the sender hold the job, unless a session holds it that lives; say all that it has missed."""
    silent = event.elsewhere.get(job.job)
    if silent is not None and silent < event.suspect_seconds:
        turn.do(Reply(_another_holds(job, silent)))
        return
    turn.do(Hold(job.job, f"another process is the submitter of {job.job} now"))
    if job.state in (LOADING, RUNNING, COLLECTING) and (trouble := _trouble(turn, job, message)):
        recovery.drop(turn, job, trouble, told=True)
    job = turn.state.jobs[job.job]
    if job.over:
        return  # its end has been said
    seen = event.remote.rpartition(":")[0].strip("[]")
    turn.emit(facts.SubmitterReturned(turn.now, job.job, seen, message.attempt))
    job = turn.state.jobs[job.job]
    away = turn.state.away_for(job)
    words, evaluated = words_of(turn.state, job) or job.state, job.training.validation_microbatches
    turn.tell(job.job, Accepted(job.job, words, away=away, validation_microbatches=evaluated))
    for missed in _missed(turn.state, job, message):
        turn.tell(job.job, missed)
    if _needs_links(job, message) and not job.awaited:
        recovery.link_up(turn, job, LINKLESS)


def on_tick(turn: Transition, hold_seconds: float) -> None:
    """Free the workers of jobs that are held for long, and end jobs whose patience is over."""
    for job in list(turn.state.jobs.values()):
        if job.over or job.held_since is None:
            continue
        held = turn.now - job.held_since
        if held > job.patience_seconds:
            patience = format_seconds(job.patience_seconds)
            why = f"its submitter did not return within {patience}: `farflung train --resume` goes on"
            jobs.end(turn, job, FAILED, why)
        elif held > hold_seconds and job.state in (LOADING, RUNNING, COLLECTING):
            why = f"its submitter has been away for {format_seconds(hold_seconds)}, so its workers are free"
            recovery.drop(turn, job, why)


def _another_holds(job: Job, silent: float) -> Denied:
    return Denied(
        f"another process is the submitter of {job.job} (heard {silent:.1f} s ago): stop it first, or watch "
        f"with `farflung attach {job.job}`",
        for_now=True,
    )


def _trouble(turn: Transition, job: Job, message: Return) -> str:
    """Why the attempt cannot go on: the sender knows more of it than the log does, or has no links for it."""
    if message.attempt > job.attempt or message.unit > max(job.began, job.recovery.reached):
        return (
            f"the submitter has recorded unit {message.unit - 1} of attempt {message.attempt}, and the "
            "broker's log less: the broker was restored from a backup, or its disk lost what was written last"
        )
    is_stuck = _needs_links(job, message) and not job.awaited and not recovery.may_link_up(turn, job)
    return LINKLESS if is_stuck else ""


def _needs_links(job: Job, message: Return) -> bool:
    """Whether workers wait for links of a submitter that is not there any more, or never for the sender's.

    An attempt that is loading is new to a submitter that holds links of an older one.
    """
    if job.state == LOADING:
        return not message.attempt
    return job.state in (RUNNING, COLLECTING) and message.attempt != job.attempt


def _missed(state: State, job: Job, message: Return) -> list[Message]:
    """What the sender has not heard, in order."""
    ended = job.recovery
    if 0 < message.attempt <= ended.last:
        before = [result for result in job.results if message.unit <= result.unit < ended.begins]
        after = [result for result in job.results if result.unit >= ended.begins]
        unit = job.training.units().at(ended.begins)
        assert unit is not None
        held = job.restores or job_queue.waits_for_version(job)
        back = RolledBack(job.job, message.attempt, ended.begins, unit.step, job.reason, held)
        said: list[Message] = [*_done(job, before), back, *_done(job, after)]
    else:
        said = _done(job, [result for result in job.results if result.unit >= message.unit], message.attempt)
        if job_queue.waits_for_version(job) and message.unit > job.next_unit:
            said.append(RolledBack(job.job, ended.last, job.next_unit, job.step, job.reason, held=True))
    if job.state == LOADING and 0 < message.attempt < job.attempt and not job.awaited:
        said.append(loads.planned_of(state, job))
    elif message.attempt == job.attempt and job.state == RUNNING:
        said.append(Running(job.job, job.attempt))
    elif message.attempt == job.attempt and job.state == COLLECTING:
        said.append(jobs.collecting_of(job))
    return said


def _done(job: Job, results: list[Result], attempt: int = 0) -> list[Message]:
    """What was decided. A sender with links of `attempt` also hears of a copy that is under way."""
    under_way = job.copies.under_way if attempt == job.attempt else None
    return [
        UnitDone(
            job.job,
            one.attempt,
            one.unit,
            math.nan if one.loss is None else one.loss,
            one.gradient_norm,
            one.bytes_sent,
            keep=one.unit == under_way,
            metrics=dict(one.metrics),
            monitored=list(job.monitoring.as_of(one.unit)),
        )
        for one in results
    ]

"""The life of a job: queued, planning, loading, running, collecting, and one of three ends."""

from __future__ import annotations

from collections.abc import Collection

from farflung.broker.core import facts
from farflung.broker.core.events import Reply, Send
from farflung.broker.core.protecting import checks, home, protection
from farflung.broker.core.records import (
    CANCELLED,
    COLLECTING,
    DONE,
    LOADING,
    PLANNING,
    QUEUED,
    RUNNING,
    Job,
)
from farflung.broker.core.training import quotas
from farflung.broker.core.training.monitoring import is_over
from farflung.broker.core.transition import Transition
from farflung.errors import ProtocolError
from farflung.protocol.fields import one_line
from farflung.protocol.messages import (
    Begin,
    Cancel,
    CheckSaid,
    Collected,
    Collecting,
    Denied,
    Ended,
    Keep,
    Kept,
    Running,
    SendState,
    Stop,
    Submit,
)
from farflung.runtime.training import Training
from farflung.text import count_of


def submit(turn: Transition, submitter: str, message: Submit, seen: str, draws: int = 0) -> None:
    """Add a job to the end of the queue; `seen` is the host that the submitter connects from.

    `draws` are as in `Job`.

    A job that cannot begin at the unit that it names is denied.
    """
    training = message.training
    if training.units().at(message.unit) is None:
        turn.do(Reply(Denied(_no_unit(training, message.unit))))
        return
    if (message.checkpoint_every or training.keeps_best) and not training.copies:
        turn.do(Reply(Denied("the job asks for copies of its state, for which its workers have no memory")))
        return
    if reason := quotas.denial(turn.state, submitter, len(message.graph)):
        turn.do(Reply(Denied(f"{reason}: wait for one to end, or end one with `farflung job cancel`")))
        return
    if reason := home.denial(turn.state, submitter, message.wishes.home, message.on):
        turn.do(Reply(Denied(one_line(reason))))
        return
    if reason := checks.denial(message):
        turn.do(Reply(Denied(reason)))
        return
    number = turn.state.submitted + 1
    turn.emit(
        facts.JobSubmitted(
            at=turn.now,
            job=f"job-{number}",
            name=one_line(message.name),
            submitter=submitter,
            training=training,
            workers=message.workers,
            on=message.on,
            wishes=message.wishes,
            seen=seen,
            number=number,
            graph_digest=turn.keep(message.graph),
            unit=message.unit,
            attempts=message.attempts,
            checkpoint_every=message.checkpoint_every,
            checkpoint_end=message.checkpoint_end,
            run=message.run,
            patience_seconds=message.patience_seconds,
            monitored=list(message.monitored),
            saves=message.saves,
            graph_bytes=len(message.graph),
            draws=draws,
        )
    )


def worker_loaded(
    turn: Transition, job: Job, worker: str, unprotected: str = "", needs_bytes: int = 0
) -> None:
    """Note that a worker has loaded its segments; the last one starts the job."""
    if job.state != LOADING or worker in job.loaded:
        return
    turn.emit(facts.WorkerLoaded(job.job, worker, one_line(unprotected), needs_bytes))
    job = turn.state.jobs[job.job]
    if job.restores or worker in job.replayers:
        protection.on_restored(turn, job, worker)
    if not job.loaded >= set(job.members):
        return
    if job.ending or (job.unit is None and not job.training.verify):
        collect(
            turn,
            job,
            job.ending or DONE,
            job.reason if job.ending else is_over(job.training, job.monitoring.states),
        )
        return
    turn.emit(facts.JobRunning(turn.now, job.job))
    turn.send_members(job, Begin(job.job, job.attempt))
    turn.tell(job.job, Running(job.job, job.attempt))


def collect(
    turn: Transition, job: Job, state: str, reason: str, drawn: Collection[int] = (), trouble: str = ""
) -> None:
    """Make the workers send their state; the job then ends as `state`.

    The last intervals of the shares `drawn` could not be checked, because of the `trouble`.
    """
    reason = one_line(reason)
    _say_unchecked(turn, job, drawn, trouble)
    found = job.checks.pieces or job.checked
    turn.emit(facts.JobCollecting(turn.now, job.job, state, reason, list(found) if state == DONE else []))
    turn.send_members(job, SendState(job.job, job.attempt, job.checkpoint_end))
    turn.tell(job.job, collecting_of(turn.state.jobs[job.job]))


def collecting_of(job: Job) -> Collecting:
    """What the submitter hears of a job that is collected."""
    found = list(job.monitoring.states)
    return Collecting(job.job, job.attempt, job.step, job.ending, job.reason, found, list(job.checked))


def on_collected(turn: Transition, job: Job, message: Collected) -> None:
    """End a job whose submitter has received the state, also if a worker was lost only after that.

    Raises
    ------
    ProtocolError
        The job is not being collected.
    """
    is_earlier = message.attempt < job.attempt or job.state == QUEUED
    if job.recovery.over and job.recovery.over <= message.attempt and is_earlier:
        end(turn, job, job.ending or DONE, job.reason if job.ending else "")
        return
    if message.attempt < job.attempt:
        return
    if job.state != COLLECTING or message.attempt > job.attempt:
        raise ProtocolError(f"the submitter says it collected {job.job}, which is {job.state}")
    end(turn, job, job.ending, job.reason)


def on_keep(turn: Transition, job: Job, message: Keep) -> None:
    """Let the state be copied after the next training step; without effect if that is so, or none follows.

    Nor has it one if the job's workers have no memory for a copy.

    Raises
    ------
    ProtocolError
        The attempt has not begun.
    """
    if message.attempt > job.attempt:
        raise ProtocolError(
            f"the submitter asks for a copy in attempt {message.attempt} of {job.job}, which has not begun"
        )
    if job.training.verify == 1:
        return  # what is not checked is not handed out
    if job.state != COLLECTING and not job.copies.due and job.training.copies:
        turn.emit(facts.CopyAsked(turn.now, job.job))


def on_kept(turn: Transition, job: Job, message: Kept) -> None:
    """Note that the submitter has stored a copy; the next one may be made.

    Raises
    ------
    ProtocolError
        No copy of this unit is under way.
    """
    if message.attempt < job.attempt or job.state == QUEUED:
        return  # of an attempt that has failed
    under_way = job.copies.under_way
    if message.attempt == job.attempt and message.unit < (job.next_unit if under_way is None else under_way):
        return  # said again, as the broker might not have heard it
    if message.attempt > job.attempt or message.unit != under_way:
        raise ProtocolError(
            f"the submitter says it stored the copy of unit {message.unit} of {job.job}, "
            "which is not under way"
        )
    turn.emit(facts.CopyStored(turn.now, job.job, message.unit, message.stored))


def cancel(turn: Transition, job: Job, message: Cancel) -> None:
    """End the job at the submitter's request; the current unit is dropped.

    Of a job of which all is checked no weights come home, unless they are checked and on their way.
    """
    if not message.collect or (job.training.verify == 1 and not job.ending):
        end(turn, job, CANCELLED, message.reason)
    elif job.state == RUNNING:
        collect(turn, job, CANCELLED, message.reason)
    elif job.state == LOADING and job.keeps:
        if not job.ending:
            turn.emit(facts.JobEnding(turn.now, job.job, CANCELLED, one_line(message.reason)))
    elif job.state == COLLECTING:
        turn.do(Reply(collecting_of(job)))
    else:
        end(turn, job, CANCELLED, message.reason)


def end(turn: Transition, job: Job, state: str, reason: str) -> None:
    """End the job; its workers return to the backup pool."""
    reason = one_line(reason)
    _say_unchecked(turn, job)
    lose_awaited(turn, job)
    turn.emit(facts.JobEnded(turn.now, job.job, state, reason))
    protection.forget(turn, job)
    if job.plan is not None and job.state != PLANNING:
        for name in job.members:
            if turn.state.workers[name].connected:
                turn.do(Send(name, Stop(job.job, job.attempt, reason or state, over=True)))
    turn.tell(job.job, Ended(job.job, state, reason))


def _say_unchecked(turn: Transition, job: Job, drawn: Collection[int] = (), trouble: str = "") -> None:
    """Tell the submitter, which counts them, whose intervals were drawn and are unchecked as the job ends."""
    found = job.checks
    if job.plan is None or job.state != RUNNING or found.attempt != job.attempt:
        return
    first, shares = checks.first_unit(job), protection.shares_of(job.plan)
    trouble = trouble or "the job ends before"
    for share in sorted(found.carried.union(found.pending, drawn) & shares.keys()):
        words = f"the newest units of {shares[share]} are not checked, because {trouble}"
        said = CheckSaid(job.job, job.attempt, words, shares[share], None, first, job.next_unit)
        turn.tell(job.job, said)


def lose_awaited(turn: Transition, job: Job) -> None:
    """Count the members as lost that the job awaits, and that are not there: it awaits them no longer."""
    for name in job.awaited:
        worker = turn.state.workers[name]
        if worker.job == job.job and not worker.connected:
            turn.emit(facts.WorkerLost(turn.now, name, worker.trouble))


def is_planning(job: Job, attempt: int) -> bool:
    """Whether the job still waits for the planner's answer for `attempt`."""
    return job.state == PLANNING and job.attempt == attempt


def is_loading(job: Job, attempt: int) -> bool:
    """Whether workers still have to load the plan of `attempt`; if not, its programs may be gone."""
    return job.state == LOADING and job.attempt == attempt


def moment(job: Job) -> str:
    """When something happened to the job, as a part of a sentence."""
    if job.state == RUNNING and job.unit is not None:
        doing = "merging" if job.unit.merges else "evaluating"
        return f"at step {job.step + 1}" if job.unit.train else f"while {doing} after step {job.step}"
    if job.state == COLLECTING:
        return f"while the weights of step {job.step} were collected"
    return f"while the job was {job.state}"


def _no_unit(training: Training, unit: int) -> str:
    """Why a job with this training cannot begin at `unit`, in one line."""
    steps = count_of(training.steps, "step")
    if training.units().at(unit - 1) is not None:
        return f"nothing is left to do: the job's {steps} are done before unit {unit}; ask for more steps"
    return f"the job cannot begin at unit {unit}: with {steps} it has no such unit"

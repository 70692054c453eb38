"""The broker as a pure state machine: an event in, facts and commands out.

No clock, socket, thread or file: time is a field of the event, and the service appends the decisions among
the facts to the store before it carries out the commands. Any history can be replayed as a list of events.

A job that makes no progress is given up after a deadline (`overdue`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import singledispatch

from farflung.broker.codecs import tuning
from farflung.broker.core import events, facts
from farflung.broker.core.blobs import Digest
from farflung.broker.core.events import Command, Reply
from farflung.broker.core.facts import AnyDecision, Decision, Fact
from farflung.broker.core.fleet import admitting, draining, moving
from farflung.broker.core.protecting import late_versions, protection, standbys
from farflung.broker.core.records import (
    FAILED,
    LOADING,
    PLANNING,
    QUEUED,
    RUNNING,
    Job,
    State,
    durable,
)
from farflung.broker.core.recovering import awaiting, recovery, returns
from farflung.broker.core.reducing.reducer import reduce_fact
from farflung.broker.core.training import cancelling, job_queue, jobs, loads, submitters, units
from farflung.broker.core.training.overdue import overdue
from farflung.broker.core.transition import Transition
from farflung.broker.core.trusting import blaming, checking, removing
from farflung.broker.core.trusting.events import AllowAsked, CancelAsked, RemovalAsked
from farflung.broker.network import reachability
from farflung.errors import ProtocolError
from farflung.protocol.messages import (
    AskCircuit,
    AskReverse,
    Broken,
    Cancel,
    CheckBegun,
    Checked,
    Collected,
    Copied,
    CopyLost,
    Denied,
    Ended,
    Keep,
    Kept,
    Loaded,
    NotReached,
    Refused,
    Return,
    Stalled,
    Submit,
    UnitReady,
)
from farflung.transport.net.addresses import parse_address

LEAST_MEASURING_SECONDS = 20.0
"""Rates that a worker reports sooner after the last ones are not taken: each is a decision in the log."""

_OF_STANDBYS = (Copied, CopyLost, AskReverse, AskCircuit, NotReached)
"""What a worker may say of a job that it stands by for."""

_OF_CHECKERS = (CheckBegun, Checked, CopyLost, AskReverse, AskCircuit, NotReached)
"""What a worker may say of a job of which it checks a share."""

__all__ = ["Outcome", "State", "decide", "durable", "reduce_fact", "replay"]


@dataclass(frozen=True)
class Outcome:
    """The result of one event; `state` is the old state with all `facts` applied in order.

    `blobs` must be stored together with the decisions that name them, and `unneeded` ones deleted.
    """

    state: State
    facts: tuple[Fact, ...]
    commands: tuple[Command, ...]
    blobs: Mapping[Digest, bytes]
    unneeded: frozenset[Digest]

    def decisions(self) -> list[AnyDecision]:
        """The facts that must be stored before any command is carried out."""
        return [fact for fact in self.facts if isinstance(fact, Decision)]


def decide(state: State, event: events.Event) -> Outcome:
    """Decide one event.

    Raises
    ------
    ProtocolError
        The event is a message that its sender may not send now. The state is unchanged; the service closes
        the sender's session.
    """
    turn = Transition(state, event.now)
    if not removing.refuses(turn, event):
        _decide(event, turn)
    draining.hand_over(turn)
    recovery.grow(turn)
    moving.settle(turn)
    awaiting.resume(turn)
    checking.settle(turn)
    units.settle(turn)
    checking.settle(turn)  # the last unit may have waited for a check
    blaming.settle(turn)
    job_queue.start_queued(turn)
    standbys.arrange(turn)
    draining.release(turn)
    returns.explain(turn)
    return Outcome(turn.state, tuple(turn.facts), tuple(turn.commands), turn.blobs, turn.unneeded_blobs())


def replay(decisions: Iterable[AnyDecision], state: State | None = None) -> State:
    """The durable state after these stored decisions, which follow on `state` (that of a new broker)."""
    state = State.empty() if state is None else state
    for fact in decisions:
        state = reduce_fact(state, fact)
    return durable(state)


@singledispatch
def _decide(event: object, turn: Transition) -> None:
    raise TypeError(f"not an event: {event!r}")


@_decide.register
def _on_restarted(event: events.Restarted, turn: Transition) -> None:
    if event.most_suspicions != turn.state.most_suspicions:
        turn.emit(facts.SuspicionsLimited(event.most_suspicions))
    returns.on_restart(turn)


@_decide.register
def _on_tick(event: events.Tick, turn: Transition) -> None:
    if event.replace_seconds != turn.state.replace_seconds:
        turn.emit(facts.WaitLimited(event.replace_seconds))
    returns.on_tick(turn, event.return_seconds)
    awaiting.on_tick(turn, event.replace_seconds)
    submitters.on_tick(turn, event.hold_seconds)
    draining.on_tick(turn)
    moving.on_tick(turn)
    late_versions.on_tick(turn)
    for job in list(turn.state.jobs.values()):
        if job.held or turn.state.away_for(job) or checking.is_waited_for(job):
            continue  # it waits for them, with deadlines of its own
        recovery.leave_out_late(turn, job)
        if turn.state.jobs[job.job] is not job:
            continue
        if job.state == QUEUED and job.plan is not None:
            recovery.wait_no_longer(turn, job, event.replace_seconds)
        elif reason := overdue(job, event.now, event.patience_seconds):
            if job.state == PLANNING:  # `give_up` would only plan it again
                jobs.end(turn, job, FAILED, reason)
            else:
                blaming.on_overdue(turn, job, reason)


@_decide.register
def _on_worker_registers(event: events.WorkerRegisters, turn: Transition) -> None:
    admitting.register(event, turn)


@_decide.register
def _on_worker_moves(event: events.WorkerMoves, turn: Transition) -> None:
    worker, where = turn.state.workers[event.worker], event.where
    if replace(worker.where, verified=()) == where:
        return
    turn.emit(
        facts.WorkerMoved(turn.now, event.worker, list(where.addresses), list(where.claims), where.seen)
    )
    loads.worker_moved(turn, event.worker)


@_decide.register
def _on_worker_measures(event: events.WorkerMeasures, turn: Transition) -> None:
    worker, found = turn.state.workers[event.worker], event.measured
    is_new = (worker.device.tflops, worker.device.rates) != (found.tflops, found.rates)
    if is_new and turn.now >= worker.measured_at + LEAST_MEASURING_SECONDS:
        turn.emit(facts.WorkerMeasured(turn.now, event.worker, found.tflops, found.rates))


@_decide.register
def _on_worker_verified(event: events.WorkerVerified, turn: Transition) -> None:
    worker = turn.state.workers[event.worker]
    if (
        not worker.connected
        or worker.where.claims != event.claims
        or worker.where.verified == event.addresses
    ):
        return  # outdated, or known already
    turn.emit(facts.WorkerVerified(event.worker, list(event.addresses)))
    loads.worker_moved(turn, event.worker)


@_decide.register
def _on_worker_leaves(event: events.WorkerLeaves, turn: Transition) -> None:
    if turn.state.workers[event.worker].connected:
        returns.lose(turn, event.worker, event.reason)


@_decide.register
def _on_leave_asked(event: events.LeaveAsked, turn: Transition) -> None:
    if not event.operator:
        draining.begin(turn, event.worker, event.within_seconds, draining.OWN_WISH)
    else:
        draining.ask(turn, event.worker, event.within_seconds, event.operator)


@_decide.register
def _on_removal_asked(event: RemovalAsked, turn: Transition) -> None:
    removing.remove(turn, event)


@_decide.register
def _on_allow_asked(event: AllowAsked, turn: Transition) -> None:
    removing.allow(turn, event)


@_decide.register
def _on_cancel_asked(event: CancelAsked, turn: Transition) -> None:
    cancelling.cancel(turn, event)


@_decide.register
def _on_worker_message(event: events.WorkerMessage, turn: Transition) -> None:
    message = event.message
    job = _job_of(turn, event)
    if job is None:
        if isinstance(message, Copied):
            protection.on_stale_copy(turn, event.worker, message)
        return
    if job.checks.running is not None and event.worker == job.checks.running.checker:
        checking.on_message(turn, job, message)
        if isinstance(message, CopyLost):
            protection.on_copy_lost(turn, turn.state.jobs[job.job], event.worker, message)
        if isinstance(message, CheckBegun | Checked | CopyLost):
            return
    match message:
        case Loaded(unprotected=why) if why and job.training.verify == 1 and job.state == LOADING:
            checking.on_unprotected(turn, job, event.worker, why)
        case Loaded():
            jobs.worker_loaded(turn, job, event.worker, message.unprotected, message.needs_bytes)
        case Copied():
            if not standbys.on_trouble(turn, job, event.worker, message):
                protection.on_copied(turn, job, event.worker, message)
        case CopyLost():
            recovery.copy_lost(turn, job, event.worker, message)
        case AskReverse() | AskCircuit():
            reachability.ask(
                turn,
                job,
                event.worker,
                message,
                turn.state.addresses_for(event.worker, message.peer, job.job),
            )
        case NotReached():
            reachability.not_reached(turn, job, event.worker, message)
        case UnitReady():
            units.add_shares(turn, job, event.worker, message)
        case Refused():
            why = f"worker {event.worker} refused the job {jobs.moment(job)}: {message.reason}"
            if job.restores and job.state == LOADING:
                if not message.lacks:
                    blaming.blame(turn, job, event.worker, message.reason)
                recovery.cannot_restore(turn, turn.state.jobs[job.job], event.worker, why, message.lacks)
            elif job.state == LOADING and event.worker in job.newcomers:
                blaming.blame(turn, job, event.worker, message.reason)
                recovery.worker_lost(turn, turn.state.jobs[job.job], event.worker, why)
            elif job.keeps:
                recovery.give_up(turn, job, why)
            else:
                blaming.on_failure(turn, job, event.worker, message.reason, why)
        case Broken():
            why = f"worker {event.worker} could not go on {jobs.moment(job)}: {message.reason}"
            if job.awaited and message.peer:
                return  # that is known: links are made anew once all are back
            if not message.peer:  # a segment failed
                blaming.on_segment_failure(turn, job, event.worker, message, why)
            elif message.peer == job.submitter:
                recovery.link_lost(turn, job, why)
            else:
                recovery.workers_apart(turn, job, event.worker, message.peer, why)


@_decide.register
def _on_submitter_message(event: events.SubmitterMessage, turn: Transition) -> None:
    message = event.message
    if isinstance(message, Submit):
        if message.opset is not None and (trouble := message.opset.conflict()):
            turn.do(Reply(Denied(f"the job was captured by another farflung: {trouble}")))
        elif twin := submitters.submitted_before(turn.state, event.submitter, message):
            submitters.take_place(turn, twin, Return(twin.job, 0, message.unit), event)
        elif event.alarm:
            turn.do(Reply(Denied(event.alarm)))
        else:
            jobs.submit(turn, event.submitter, message, parse_address(event.remote)[0], event.draws)
        return
    job = turn.state.jobs.get(message.job)
    if job is None or job.submitter != event.submitter:
        turn.do(
            Reply(Denied(f"{event.submitter} has no job {message.job} here: `farflung status` lists jobs"))
        )
    elif job.over:
        turn.do(Reply(Ended(job.job, job.state, job.reason)))
    elif isinstance(message, Return):
        submitters.take_place(turn, job, message, event)
    elif denial := submitters.denial(job, event):
        turn.do(Reply(denial))
    elif isinstance(message, Cancel):
        jobs.cancel(turn, job, message)
    elif isinstance(message, Collected):
        jobs.on_collected(turn, job, message)
    elif isinstance(message, Stalled):
        blaming.on_stalled(turn, job, message, event.patience_seconds)
    elif isinstance(message, Keep):
        jobs.on_keep(turn, job, message)
    elif isinstance(message, Kept):
        jobs.on_kept(turn, job, message)
        units.decide_if_complete(turn, turn.state.jobs[job.job])
    elif message.attempt == job.attempt:
        seen = reachability.submitter_addresses(message, event.remote)
        reachability.ask(turn, job, event.submitter, message, seen)


@_decide.register
def _on_submitter_leaves(event: events.SubmitterLeaves, turn: Transition) -> None:
    job = turn.state.jobs[event.job]
    if not job.over and not job.held:
        submitters.leave(turn, job, event.reason)


@_decide.register
def _on_plan_made(event: events.PlanMade, turn: Transition) -> None:
    job = turn.state.jobs[event.job]
    if jobs.is_planning(job, event.attempt):
        recovery.plan_made(turn, job, event.result)


@_decide.register
def _on_plan_failed(event: events.PlanFailed, turn: Transition) -> None:
    job = turn.state.jobs[event.job]
    if jobs.is_planning(job, event.attempt):
        recovery.cannot_be_planned(turn, job, event.reason)


@_decide.register
def _on_plan_lacks(event: events.PlanLacks, turn: Transition) -> None:
    job = turn.state.jobs[event.job]
    if jobs.is_planning(job, event.attempt):
        turn.emit(facts.JobRequeued(turn.now, event.job, "", dict(event.unable)))


@_decide.register
def _on_plan_considered(event: events.PlanConsidered, turn: Transition) -> None:
    job = turn.state.jobs[event.job]
    if job.state == RUNNING and job.attempt == event.attempt:
        moving.on_considered(turn, job, event)


@_decide.register
def _on_tuning_read(event: events.TuningRead, turn: Transition) -> None:
    job = turn.state.jobs[event.job]
    if not job.over and job.attempt == event.attempt and job.tuning is None:
        tuning.begin(turn, job, event.steering, job.codecs)


@_decide.register
def _on_codecs_considered(event: events.CodecsConsidered, turn: Transition) -> None:
    tuning.on_codecs_considered(turn, turn.state.jobs[event.job], event)


def _job_of(turn: Transition, event: events.WorkerMessage) -> Job | None:
    """The live job that the message is about; None if the message belongs to an attempt that has ended."""
    message = event.message
    job = turn.state.jobs.get(message.job)
    if job is None or message.attempt > job.attempt:
        raise ProtocolError(
            f"worker {event.worker} sent a message for attempt {message.attempt} of job {message.job}, "
            "which this broker never began"
        )
    if job.over or job.state == QUEUED or message.attempt < job.attempt:
        return None
    if event.worker in job.standbys.values() and isinstance(message, _OF_STANDBYS):
        return job
    checks = job.checks.running
    if checks is not None and event.worker == checks.checker and isinstance(message, _OF_CHECKERS):
        return job
    if isinstance(message, CheckBegun | Checked):
        return None  # of a check that is over
    if event.worker not in job.members and job.holders and isinstance(message, _OF_STANDBYS):
        return None  # it may have stood by until now
    if event.worker not in job.members or job.state == PLANNING:
        raise ProtocolError(f"worker {event.worker} sent a message for job {job.job}, but has no part in it")
    return job

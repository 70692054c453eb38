"""Members that operators remove and allow again. Pure.

A removed worker is lost to its job at once, and its disk with it, so recovery takes its share over. The jobs
of a removed submitter end. All workers hear of it, close their links with it, and accept no others.
"""

from __future__ import annotations

from farflung.broker.core import events, facts
from farflung.broker.core.events import Expel, Reject, Reply, Send
from farflung.broker.core.protecting import standbys
from farflung.broker.core.records import CANCELLED, PLANNING, QUEUED, Job, State
from farflung.broker.core.recovering import awaiting, recovery
from farflung.broker.core.training import job_queue, jobs
from farflung.broker.core.transition import Transition
from farflung.broker.core.trusting.events import AllowAsked, CancelAsked, RemovalAsked
from farflung.protocol import members
from farflung.protocol.fields import one_line
from farflung.protocol.messages import Denied, Message
from farflung.text import count_of

MOST_TOLD_SECONDS = 8 * 86_400.0
"""A worker that registers hears of the removals of this time: older certificates have ended by themselves."""


def refuses(turn: Transition, event: events.Event) -> bool:
    """Whether an event comes from a member that was removed, which then hears why it has no effect."""
    removal = turn.state.removed.get(_sender_of(event))
    if removal is None:
        return False
    if isinstance(event, events.WorkerRegisters):
        turn.do(Reject(removal.refusal))
    elif not isinstance(event, events.WorkerMessage | events.WorkerMoves | events.WorkerMeasures):
        turn.do(Reply(Denied(removal.refusal)))
    return True


def remove(turn: Transition, event: RemovalAsked) -> None:
    """Remove a member, and answer the operator who asks for it."""
    name = event.member
    if known := turn.state.removed.get(name):
        turn.do(Reply(Denied(one_line(f"{name} is removed already: it {known.words}"))))
        return
    if name == event.operator:
        turn.do(Reply(Denied("an operator cannot remove itself: let another one do it")))
        return
    reason = one_line(event.reason)
    turn.emit(facts.MemberRemoved(turn.now, name, event.role, event.operator, reason))
    words = one_line(turn.state.removed[name].words)
    done = _end_jobs(turn, name, words)
    if name in turn.state.workers:
        done += _lose(turn, name, words)
    done += _token_words(event)
    _tell_all(turn, members.MemberRemoved(name, words))
    turn.do(Expel(name, one_line(turn.state.removed[name].refusal)))
    turn.do(Reply(members.MemberChanged(name, event.role, one_line("; ".join(done)))))


def allow(turn: Transition, event: AllowAsked) -> None:
    """Allow a member again, and answer the operator who asks for it."""
    name = event.member
    known, suspicion = turn.state.removed.get(name), turn.state.suspicions.get(name)
    is_blamed = any(name in job.blamed for job in turn.state.jobs.values())
    if known is None and suspicion is None and not is_blamed:
        why = f"nothing is held against {name}: `farflung member list` shows all members"
        turn.do(Reply(Denied(one_line(why))))
        return
    turn.emit(facts.MemberAllowed(turn.now, name, event.operator))
    if known is None:
        words, role = (
            f"this is forgotten: it {suspicion.words}" if suspicion else "jobs use it again",
            "worker",
        )
    else:
        words, role = "it may connect again", known.role
        _tell_all(turn, members.MemberAllowed(name))
    turn.do(Reply(members.MemberChanged(name, role, one_line(words))))


def told_on_registration(state: State, now: float) -> list[str]:
    """The removed members whose certificates may still be valid."""
    return sorted(one.member for one in state.removed.values() if now - one.at < MOST_TOLD_SECONDS)


def _sender_of(event: events.Event) -> str:
    """The member that an event comes from; empty if it is none, or may have gone."""
    match event:
        case events.WorkerRegisters(worker=name) | events.WorkerMoves(worker=name):
            return name
        case events.WorkerMeasures(worker=name) | events.WorkerMessage(worker=name):
            return name
        case events.LeaveAsked(worker=name, operator=operator):
            return operator or name
        case events.SubmitterMessage(submitter=name) | CancelAsked(by=name):
            return name
        case RemovalAsked(operator=name) | AllowAsked(operator=name):
            return name
        case _:
            return ""


def _end_jobs(turn: Transition, submitter: str, words: str) -> list[str]:
    """End the jobs of a removed submitter; what was done, in words."""
    own = [job for job in turn.state.jobs.values() if job.submitter == submitter and not job.over]
    for job in own:
        jobs.end(turn, job, CANCELLED, f"its submitter {submitter} {words}")
    return [f"{count_of(len(own), 'job')} of it ended"] if own else []


def _lose(turn: Transition, name: str, words: str) -> list[str]:
    """Count a removed worker and its disk as lost; what was done, in words."""
    worker = turn.state.workers[name]
    job = None if worker.job is None else turn.state.jobs[worker.job]
    if job is not None and name in job.awaited:
        awaiting.end(turn, job, f"worker {name} {words}")
    worker = turn.state.workers[name]
    if worker.connected or worker.away:
        turn.emit(facts.WorkerLost(turn.now, name, f"it {words}"))
        standbys.lost(turn, name)
        if worker.job is not None:
            job = turn.state.jobs[worker.job]
            why = f"worker {name} {words}, {jobs.moment(job)}"
            recovery.worker_lost(turn, job, name, why)
    _wait_no_longer(turn, name, words)
    return [] if job is None else [_share_words(job, turn.state.jobs[job.job], name)]


def _share_words(job: Job, after: Job, name: str) -> str:
    """Who may take over what a removed worker had of a job, as it stood before and as it stands after."""
    if after.over:
        return f"{job.job} has ended: {after.reason}"
    if job.state == PLANNING:
        return f"{job.job}, which was being planned, has to do without it"
    if job.plan is not None and name in job.plan.at_home():
        lost = ", and what only its disk had is lost" if after.state == QUEUED else ""
        return f"only another home worker of {job.job} may take its share of it{lost}"
    if after.state == QUEUED and job.on:
        return f"{job.job} goes on once enough of the workers that it names (--on) are there"
    if after.state == QUEUED:
        return f"{job.job} goes on with others as soon as there are enough"
    return f"its share of {job.job} goes to others"


def _wait_no_longer(turn: Transition, name: str, words: str) -> None:
    """Let queued jobs wait no longer for a place in their plan that the removed worker had."""
    for job in list(turn.state.jobs.values()):
        if job.over or not job_queue.waits_for_version(job) or job.plan is None:
            continue
        if name in job.plan.workers() and job_queue.seating(turn.state, job) is None:
            job_queue.give_plan_up(turn, job, f"worker {name} {words}")


def _token_words(event: RemovalAsked) -> list[str]:
    """That the token of a removed member still lets others in, and how to end that."""
    if not event.lets_in:
        return []
    lets_in = f"the token it joined with lets {event.lets_in} more join"
    return [f"{lets_in}: `farflung token revoke {event.token}` on the broker's machine ends that"]


def _tell_all(turn: Transition, message: Message) -> None:
    """Tell every worker that is connected. A submitter links only to members of a plan, and hears of that."""
    for worker in turn.state.workers.values():
        if worker.connected:
            turn.do(Send(worker.worker, message))

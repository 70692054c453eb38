"""Jobs that end because an operator, or their submitter from another terminal, asks for it. Pure."""

from __future__ import annotations

from farflung.broker.core.events import Reply
from farflung.broker.core.records import CANCELLED, COLLECTING, Job
from farflung.broker.core.training import jobs
from farflung.broker.core.transition import Transition
from farflung.broker.core.trusting.events import CancelAsked
from farflung.protocol.fields import one_line
from farflung.protocol.members import JobCancelled
from farflung.protocol.messages import Cancel, Denied


def cancel(turn: Transition, event: CancelAsked) -> None:
    """End a job for the sender, as if its submitter had stopped it, and answer the sender.

    A submitter that is there gets the weights first, with its newest checkpoint, unless the job ends at once.
    """
    job = turn.state.jobs.get(event.job)
    is_allowed = job is not None and (event.role == "operator" or job.submitter == event.by)
    if job is None or not is_allowed:
        turn.do(Reply(Denied(f"{event.by} has no job {event.job} here: `farflung job list` shows them")))
        return
    if job.over:
        turn.do(Reply(Denied(one_line(f"{job.job} is over: {job.state}{job.reason and f': {job.reason}'}"))))
        return
    reason = one_line(_reason(event))
    if event.at_once or job.held:  # what a submitter that is away has is all that it gets
        jobs.end(turn, job, CANCELLED, reason)
    elif job.state != COLLECTING:  # else its weights are on their way, and only the sender hears an answer
        jobs.cancel(turn, job, Cancel(job.job, reason[:500], collect=True))
    turn.do(Reply(JobCancelled(job.job, _what_follows(turn.state.jobs[job.job]))))


def _reason(event: CancelAsked) -> str:
    who = f"operator {event.by}" if event.role == "operator" else "its submitter, from another terminal,"
    return f"{who} cancelled it{event.reason and f': {event.reason}'}"


def _what_follows(job: Job) -> str:
    """What a cancelled job still does, in words."""
    if job.over:
        return ""
    ends = "its weights come" if job.state == COLLECTING else "what its workers hold comes"
    return f"{ends} to its submitter first"

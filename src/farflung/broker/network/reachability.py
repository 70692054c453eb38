"""Help members of a plan that cannot reach each other: reverse dialling, and circuits through relays.

None of this is stored: a member that loses an answer asks again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from farflung.broker.core.events import Command, OpenCircuit, Send, SendToSubmitter
from farflung.broker.core.records import COLLECTING, LOADING, RUNNING, Job, State
from farflung.broker.core.transition import Transition
from farflung.errors import ProtocolError
from farflung.plans import FEEDER, Plan
from farflung.protocol.fields import Message
from farflung.protocol.reachability import AskCircuit, AskReverse, DialBack, NotReached
from farflung.runtime.training import Training
from farflung.transport.net.addresses import EVERY_INTERFACE, format_address, is_loopback, parse_address
from farflung.transport.security.names import BROKER_ID

QUOTA_FACTOR = 2
QUOTA_SLACK_BYTES = 2**28
"""Allowance for heartbeats, framing and TLS over days."""


def ask(
    turn: Transition, job: Job, asker: str, message: AskReverse | AskCircuit, addresses: Sequence[str]
) -> None:
    """Pass a request on to another member of the plan, which then dials back or takes an end of a circuit.

    `addresses` are those of the asker.

    Raises
    ------
    ProtocolError
        The plan has no link between the two.
    """
    if job.state not in (LOADING, RUNNING, COLLECTING) or job.plan is None:
        return
    if not _is_pair(job, job.plan, asker, message.peer):
        return
    if isinstance(message, AskReverse):
        request = DialBack(message.number, job.job, job.attempt, asker, list(addresses))
        turn.do(to_member(job.job, job.submitter, message.peer, request))
    else:
        turn.do(_circuit(turn.state, job, job.plan, asker, message))


def submitter_addresses(message: AskReverse | AskCircuit, remote: str) -> list[str]:
    """The address at which a submitter connected from `remote` (HOST:PORT) can be dialled back.

    A submitter that connected over the loopback runs on the broker's machine. Others reach that under another
    host, so the address has the wildcard host, which receivers replace by the broker's.
    """
    if not isinstance(message, AskReverse):
        return []
    host, _ = parse_address(remote)
    here = is_loopback(host)
    return [format_address(EVERY_INTERFACE[0] if here else host, message.port)]


def not_reached(turn: Transition, job: Job, worker: str, message: NotReached) -> None:
    """Tell the asker that its peer could not help; see `ask`."""
    if job.plan is not None and _is_pair(job, job.plan, worker, message.peer):
        answer = NotReached(message.number, job.job, job.attempt, worker, message.reason)
        turn.do(to_member(job.job, job.submitter, message.peer, answer))


def to_member(job: str, submitter: str, member: str, message: Message) -> Command:
    """The command that sends `message` to a worker of the job or to its submitter."""
    return SendToSubmitter(job, message) if member == submitter else Send(member, message)


def byte_quota(plan: Plan, training: Training, a: str, b: str, submitter: str) -> int:
    """Bytes that a circuit between two members may carry in total: twice what the plan sends between them.

    A circuit ends when its quota is used up; its members then ask for another one.
    """
    microbatches = _microbatches(training)
    if submitter in (a, b):
        mine = set(plan.segments_of(b if a == submitter else a))
        fed = sum(edge.bytes for edge in plan.edges if edge.source == FEEDER and edge.target in mine)
        weights = sum(part.parameter_bytes for part in plan.placements if part.segment in mine)
        state = (1 + training.optimizer.moments) * weights  # more copies of it take more circuits
        expected = fed * microbatches + 2 * state
    else:
        crossing = [
            edge
            for edge in plan.edges
            if edge.source != FEEDER and {plan.worker_of(edge.source), plan.worker_of(edge.target)} == {a, b}
        ]
        expected = sum(edge.bytes * (1 + edge.differentiable) for edge in crossing) * microbatches
        summed = sum(
            2 * one.bytes
            for one in plan.sums
            for segment in one.holders()
            if {plan.worker_of(segment), plan.worker_of(one.head_of(segment))} == {a, b}
        )
        expected += summed * training.steps
        if not expected:  # they only exchange copies of their state, of which more take more circuits
            shares = {*plan.segments_of(a), *plan.segments_of(b)}
            weights = sum(part.parameter_bytes for part in plan.placements if part.segment in shares)
            expected = 4 * (1 + training.optimizer.moments) * weights
    return QUOTA_FACTOR * expected + QUOTA_SLACK_BYTES


def _microbatches(training: Training) -> int:
    """An upper bound on the microbatches of the whole job, including evaluations."""
    evaluations = 2 + training.steps // (training.validate_every or training.steps)
    return training.steps * training.microbatches + evaluations * training.validation_microbatches


def _circuit(state: State, job: Job, plan: Plan, asker: str, message: AskCircuit) -> Command:
    relay = relay_for(state, job.job, (asker, message.peer), message.without)
    if relay in message.without:
        none = NotReached(message.number, job.job, job.attempt, message.peer, "no other relay is available")
        return to_member(job.job, job.submitter, asker, none)
    quota = byte_quota(plan, job.training, asker, message.peer, job.submitter)
    ends = () if relay == BROKER_ID else (asker, message.peer)
    addresses = {end: state.addresses_for(relay, end, job.job) for end in ends}
    return OpenCircuit(
        message.number,
        job.job,
        job.attempt,
        asker,
        message.peer,
        job.submitter,
        relay,
        addresses,
        quota,
    )


def relay_for(state: State, job: str, pair: tuple[str, str], without: Sequence[str]) -> str:
    """Choose a worker that relays, with probability by its rate; the broker if none is left.

    Weighted rendezvous hashing: a pair always gets the same relay, and pairs spread over the relays without
    any bookkeeping.
    """
    offers = {
        name: worker.relay_mbps
        for name, worker in state.workers.items()
        if worker.connected
        and worker.relay_mbps > 0
        and name not in pair
        and name not in without
        and all(state.addresses_for(name, end, job) for end in pair)
    }

    def score(name: str) -> float:
        digest = hashlib.sha256(f"{job} {sorted(pair)} {name}".encode()).digest()
        fraction = (int.from_bytes(digest[:8]) + 1) / (2**64 + 1)
        return -offers[name] / math.log(fraction)

    return max(offers, key=score, default=BROKER_ID)


def _is_pair(job: Job, plan: Plan, a: str, b: str) -> bool:
    """Whether the plan has a link between the two; False if one may have stood by for the other until now.

    Raises
    ------
    ProtocolError
        It has none, and never had: both are members, or the job has no standbys.
    """
    workers = set(plan.workers())
    running = job.checks.running
    linked = workers if running is None else {*workers, running.checker}
    fed = (a in linked and b == job.submitter) or (b in linked and a == job.submitter)
    if fed or b in job.partners(a):
        return True
    if not job.holders or (a in workers and b in workers):
        raise ProtocolError(f"{a} asks for a link to {b}, but the plan of {job.job} has no such link")
    return False

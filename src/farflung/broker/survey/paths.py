"""Help two workers of a survey that cannot reach each other, as `network.reachability` does for a plan."""

from __future__ import annotations

from farflung.broker.core.events import Command, OpenCircuit, Send
from farflung.broker.core.records import State
from farflung.broker.network.reachability import relay_for
from farflung.broker.survey.machine import Survey
from farflung.protocol.probing import SURVEY
from farflung.protocol.reachability import AskCircuit, AskReverse, DialBack, NotReached
from farflung.transport.security.names import BROKER_ID

QUOTA_SLACK_BYTES = 2**20

PathQuestion = AskReverse | AskCircuit | NotReached


def help_reach(state: State, survey: Survey | None, asker: str, message: PathQuestion) -> Command | None:
    """The command that answers a member's request; None if its probe has ended or never existed."""
    running = None if survey is None else survey.running.get(message.attempt)
    if survey is None or running is None or message.job != SURVEY or asker == message.peer:
        return None
    if not {asker, message.peer} <= set(running.probe.members):
        return None
    if isinstance(message, AskReverse):
        addresses = state.addresses_for(asker, message.peer)
        return Send(message.peer, DialBack(message.number, SURVEY, message.attempt, asker, addresses))
    if isinstance(message, NotReached):
        answer = NotReached(message.number, SURVEY, message.attempt, asker, message.reason)
        return Send(message.peer, answer)
    return _circuit(state, survey, asker, message)


def _circuit(state: State, survey: Survey, asker: str, message: AskCircuit) -> Command:
    relay = relay_for(state, SURVEY, (asker, message.peer), message.without)
    if relay in message.without:
        words = "no other relay is available"
        return Send(asker, NotReached(message.number, SURVEY, message.attempt, message.peer, words))
    ends = () if relay == BROKER_ID else (asker, message.peer)
    return OpenCircuit(
        message.number,
        SURVEY,
        message.attempt,
        dialler=asker,
        target=message.peer,
        submitter="",
        relay=relay,
        addresses={end: state.addresses_for(relay, end) for end in ends},
        byte_quota=4 * survey.byte_limit + QUOTA_SLACK_BYTES,
    )

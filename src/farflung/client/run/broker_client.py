"""The submitter's connections to its broker.

`open_broker_session` opens the control session of a run. `ask_status`, `ask_topology` and `renew` each send
one query over a connection of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.protocol import broker_session
from farflung.protocol.broker_session import BrokerSession, dial_broker
from farflung.protocol.membership import Drain, Draining
from farflung.protocol.messages import (
    AllowMember,
    Ask,
    AskMembers,
    CancelJob,
    Denied,
    JobCancelled,
    MemberChanged,
    Members,
    Message,
    RemoveMember,
    Renew,
    Renewed,
    Status,
    ToOperator,
    ToSubmitter,
    decode,
    encode,
)
from farflung.protocol.probing import AskTopology, FleetTopology
from farflung.protocol.timeline import AskStep, StepTimeline
from farflung.text import kind_of
from farflung.transport.endpoint import Handler, Hello, Link
from farflung.transport.security.identity import Identity
from farflung.transport.security.names import BROKER_ID
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import DataHeader

LONGEST_STEP_SECONDS = 660.0
"""A broker that waits for a step gives up before."""

_Answer = TypeVar("_Answer", bound=Message)


async def ask_status(identity: Identity) -> Status:
    """The status of the broker that `identity` joined; any role may ask.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, refuses, or does not answer in time.
    """
    return await _ask_for(identity, Ask(), Status)


async def ask_topology(identity: Identity, survey: bool = False) -> FleetTopology:
    """The topology of the fleet whose broker `identity` joined; any role may ask.

    With `survey`, which only a submitter may request, the idle workers start to measure their links again.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, refuses, or does not answer in time.
    """
    return await _ask_for(identity, AskTopology(survey), FleetTopology)


async def ask_step(identity: Identity, job: str) -> StepTimeline:
    """What the workers of a job do in one of its next steps; any role may ask.

    It takes as long as a step or two.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, or refuses, because the job runs no steps now.
    """
    return await _ask_for(identity, AskStep(job), StepTimeline, LONGEST_STEP_SECONDS)


async def ask_to_drain(identity: Identity, worker: str, within_seconds: int) -> Draining:
    """Ask the broker to let a worker leave in good order, as an operator.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, refuses, or does not answer in time.
    """
    return await _ask_for(identity, Drain(worker, within_seconds), Draining)


async def ask_members(identity: Identity) -> Members:
    """All members of the broker that `identity` joined as an operator.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, refuses, or does not answer in time.
    """
    return await _ask_for(identity, AskMembers(), Members)


async def ask_to_remove(identity: Identity, member: str, reason: str) -> MemberChanged:
    """Remove a member, as an operator.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, refuses, or does not answer in time.
    """
    return await _ask_for(identity, RemoveMember(member, reason), MemberChanged)


async def ask_to_allow(identity: Identity, member: str) -> MemberChanged:
    """Allow a member again, as an operator.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, refuses, or does not answer in time.
    """
    return await _ask_for(identity, AllowMember(member), MemberChanged)


async def ask_to_cancel(identity: Identity, job: str, reason: str, at_once: bool) -> JobCancelled:
    """End a job, as an operator or as its submitter.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, refuses, or does not answer in time.
    """
    return await _ask_for(identity, CancelJob(job, reason, at_once), JobCancelled)


async def _ask_for(
    identity: Identity, question: Message, kind: type[_Answer], seconds: float | None = None
) -> _Answer:
    answer = await _ask(identity, question, seconds)
    if not isinstance(answer, kind):
        raise ProtocolError(f"the broker answered with {kind_of(answer)}, expected {kind.__name__}")
    return answer


async def renew(identity: Identity) -> Identity:
    """Renew the holder's certificate and store it in its folder.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, refuses, or does not answer in time.
    IdentityError
        The certificate is not for this holder.
    """
    answer = await _ask_for(identity, Renew(await asyncio.to_thread(identity.renewal_request)), Renewed)
    return await asyncio.to_thread(identity.renewed, answer.certificate, answer.authorities)


async def _ask(identity: Identity, question: Message, seconds: float | None = None) -> Message:
    """The broker's answer; it has the time of a lease, or as many `seconds`."""
    timeouts = Timeouts()
    limit = timeouts.lease_seconds if seconds is None else seconds
    inquiry = _BrokerQuery()
    link = await dial_broker(identity, inquiry, timeouts)
    try:
        link.send_control(encode(question))
        async with asyncio.timeout(limit):
            return await inquiry.answer
    except TimeoutError:
        raise ConnectionFailed(
            f"the broker at {identity.broker} did not answer within {limit:.0f} s"
        ) from None
    finally:
        await link.close("asked and answered")


class _BrokerQuery:
    """Waits for one answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def control(self, link: Link, message: bytes) -> None:
        reply = decode(message, ToOperator)  # which has all that any role may hear
        if isinstance(reply, Denied):
            self._fail(reply.reason)
        elif not self.answer.done():
            self.answer.set_result(reply)

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        raise ProtocolError("the broker sent data: it only ever sends control messages")

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        """Never called: `opening` takes nothing."""

    def closed(self, link: Link, reason: str) -> None:
        self._fail(f"the broker closed the connection: {reason}")

    def _fail(self, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(ConnectionFailed(reason))


log = logging.getLogger("farflung.client")


def hello(identity: Identity, kind: Literal["control", "data"]) -> Hello:
    """The first message of this process on a connection."""
    return Hello(id=identity.id, role=identity.role, kind=kind)


@dataclass(frozen=True)
class Lost:
    """A link is gone: `peer` is a worker's id, or `broker`."""

    peer: str
    reason: str


class _Listener:
    """Passes the broker's messages on."""

    def __init__(self, hear: Callable[[Message | Lost], None]) -> None:
        self._hear = hear

    def on_message(self, message: Message) -> None:
        self._hear(message)

    def on_reconnect(self) -> None:
        log.warning("linked to the broker again")

    def on_disconnect(self, reason: str) -> None:
        self._hear(Lost(BROKER_ID, reason))


async def open_broker_session(
    identity: Identity, timeouts: Timeouts, hear: Callable[[Message | Lost], None]
) -> BrokerSession:
    """Open a session with the broker that the identity joined.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, or is another one.
    """

    async def dialled(handler: Handler) -> Link:
        return await broker_session.dial_broker(identity, handler, timeouts)

    line = BrokerSession(ToSubmitter, _Listener(hear), dialled)
    await line.open()
    return line

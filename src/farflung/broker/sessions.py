"""Control sessions: one holder's session (`HolderSession`), and the sessions by worker and by job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from farflung.broker.core.events import Admit, Command, Hold, Reject, Reply, Send, SendToSubmitter
from farflung.broker.network.allowances import OF_ROLE
from farflung.errors import ProtocolError
from farflung.protocol import messages
from farflung.protocol.messages import Attach, Attached, Denied, Message
from farflung.transport.failures import why_given_up
from farflung.transport.link.link import Link
from farflung.transport.link.session import Session
from farflung.transport.security.peer import Peer


class HolderSession:
    """One holder's control session with this broker.

    It begins with one connection. Once the holder has attached that to a session, another connection can
    replace it. If the network breaks a connection, the session lives on until the lease ends; if the holder
    closed it or its process died, the session ends at once. `on_end` is called with the reason when it ends.
    It has been there since `began_at` (`time.monotonic`).
    """

    def __init__(self, link: Link, on_end: Callable[[HolderSession, str], None]) -> None:
        self._connection = link
        self._on_end = on_end
        self._session = Session("")
        self._session.carry(link, 0)
        self._expiry: asyncio.TimerHandle | None = None
        self._is_over = False
        self.began_at = time.monotonic()

    @property
    def peer(self) -> Peer:
        """The holder."""
        return self._connection.peer

    @property
    def remote(self) -> str:
        """HOST:PORT that the current connection comes from."""
        return self._connection.remote

    @property
    def last_received_at(self) -> float:
        """When the last bytes arrived (`time.monotonic`)."""
        return self._connection.last_received_at

    @property
    def seconds_away(self) -> float:
        """Half of the last round trip; 0 before there was one."""
        return (self._connection.round_trip_seconds or 0.0) / 2

    @property
    def session(self) -> str:
        """The holder's nonce for this session; empty until the holder attaches its connection."""
        return self._session.nonce

    def send_control(self, message: bytes) -> None:
        """Send a message now, or over the connection that replaces a lost one.

        A holder that reads too little of what it is sent is given up.
        """
        unread, most = self._session.unacknowledged_control_bytes, OF_ROLE[self.peer.role].unread_bytes
        try:
            if unread and unread + len(message) > most:
                raise ProtocolError(f"{self.peer} has left {unread:,} bytes unread, and may leave {most:,}")
            self._session.send_control(message)
        except ProtocolError as error:
            self._connection.cut_off(str(error))
            self._end(str(error))

    def attach(self, attach: Attach) -> None:
        """Begin the session that the holder names in its first message.

        Raises
        ------
        ProtocolError
            The holder wants to resume a session that this broker does not know.
        """
        session = Session(attach.session)
        if self._session.nonce or attach.previous:
            raise ProtocolError("the broker does not know this session any more: register again")
        session.exchange_receipts(attach.number, attach.previous, attach.received)
        self._session = session
        self._connection.send_control(messages.encode(Attached()))
        session.carry(self._connection, attach.number)

    def resume(self, attach: Attach, link: Link) -> None:
        """Continue on a new connection; ProtocolError if the holder's message counts are impossible."""
        received = self._session.exchange_receipts(attach.number, attach.previous, attach.received)
        if self._expiry is not None:
            self._expiry.cancel()
        self._connection.abandon("superseded by a newer connection")
        self._connection = link
        link.send_control(messages.encode(Attached(received)))
        self._session.carry(link, attach.number)

    def on_connection_closed(self, reason: str) -> None:
        """Note that the current connection closed."""
        self._session.on_link_lost()
        link = self._connection
        if self._is_over or link.cause != "network":
            self._end(reason)
            return
        lease = link.timeouts.lease_seconds
        left = max(0.0, link.last_received_at + lease - time.monotonic())
        words = why_given_up(str(link.peer), lease, reason)
        self._expiry = asyncio.get_running_loop().call_later(left, self._end, words)

    async def close(self, reason: str) -> None:
        """End the session and tell the holder why."""
        self._is_over = True
        await self._connection.close(reason)
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._session.close()
        on_end, self._on_end = self._on_end, _ignore_end
        on_end(self, reason)


def _ignore_end(session: HolderSession, reason: str) -> None:
    """Replace the callback after the end was reported."""


class Caller:
    """Somebody who has no session, but may ask for one thing as `peer`: it takes the one `answer`."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def send_control(self, message: bytes) -> None:
        """Take the answer."""
        if not self.answer.done():
            self.answer.set_result(messages.decode(message, messages.ToOperator))

    async def close(self, reason: str) -> None:
        """Take a refusal."""
        if not self.answer.done():
            self.answer.set_result(Denied(reason))


Origin = HolderSession | Caller
"""Where a message came from, and where its answer goes."""


class SessionRegistry:
    """Sessions by worker and by job. A submitter may have several sessions; each holds jobs of its own."""

    def __init__(self) -> None:
        self.workers: dict[str, HolderSession] = {}
        self.jobs: dict[str, HolderSession] = {}

    def is_worker(self, session: Origin) -> bool:
        """Whether this is the current session of a registered worker."""
        return self.workers.get(session.peer.id) is session

    def jobs_of(self, session: HolderSession) -> list[str]:
        """The open jobs that this session holds."""
        return [job for job, owner in self.jobs.items() if owner is session]

    def held_elsewhere(self, session: HolderSession) -> dict[str, HolderSession]:
        """The open jobs that other sessions of the same holder hold."""
        return {
            job: owner
            for job, owner in self.jobs.items()
            if owner is not session and owner.peer == session.peer
        }

    def receiver(self, command: Command, origin: Origin | None) -> tuple[Origin, Message] | None:
        """The session that gets a command's message; None if it is closed or the command has no message."""
        session: Origin | None
        match command:
            case Send(worker, message):
                session = self.workers.get(worker)
            case SendToSubmitter(job, message):
                session = self.jobs.get(job)
            case Reply(message):
                session = origin
            case Reject(reason, for_now):
                session, message = origin, Denied(reason, for_now)
            case _:
                return None
        return None if session is None else (session, message)

    def admit(self, command: Command, origin: Origin | None) -> HolderSession | None:
        """Register an admitted worker's session; returns the session that it replaces."""
        if not isinstance(command, Admit) or origin is None or isinstance(origin, Caller):
            return None
        older = self.workers.get(command.worker)
        self.workers[command.worker] = origin
        return older

    def hold(self, command: Command, origin: Origin | None) -> HolderSession | None:
        """Let a session hold a job; returns the session that it replaces."""
        if not isinstance(command, Hold) or origin is None or isinstance(origin, Caller):
            return None
        older = self.jobs.get(command.job)
        self.jobs[command.job] = origin
        return None if older is origin else older

    def drop(self, session: HolderSession) -> None:
        """Forget a session that has ended."""
        if self.is_worker(session):
            del self.workers[session.peer.id]
        for job in self.jobs_of(session):
            del self.jobs[job]

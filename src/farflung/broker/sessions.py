"""Control sessions: one holder's session (`HolderSession`), and the sessions by worker and by job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from farflung.broker.core.events import Admit, Command, Reject, Reply, Send, Tell
from farflung.errors import ProtocolError
from farflung.protocol import messages
from farflung.protocol.messages import Attach, Attached, Denied, Message
from farflung.transport.failures import why_over
from farflung.transport.link import Link
from farflung.transport.peer import Peer
from farflung.transport.session import Session


class HolderSession:
    """One holder's control session with this broker.

    It begins with one connection. Once the holder has attached that to a session, another connection can
    replace it. If the network breaks a connection, the session lives on until the lease ends; if the holder
    closed it or its process died, the session ends at once. `gone` is called with the reason when it ends.
    """

    def __init__(self, link: Link, gone: Callable[[HolderSession, str], None]) -> None:
        self._link = link
        self._gone = gone
        self._session = Session("")
        self._session.carry(link, 0)
        self._expiry: asyncio.TimerHandle | None = None
        self._is_over = False

    @property
    def peer(self) -> Peer:
        """The holder."""
        return self._link.peer

    @property
    def remote(self) -> str:
        """HOST:PORT that the current connection comes from."""
        return self._link.remote

    @property
    def last_heard(self) -> float:
        """When the last bytes arrived (`time.monotonic`)."""
        return self._link.last_heard

    @property
    def session(self) -> str:
        """The holder's nonce for this session; empty until the holder attaches its connection."""
        return self._session.nonce

    def send_control(self, message: bytes) -> None:
        """Send a message now, or over the connection that replaces a lost one."""
        try:
            self._session.send_control(message)
        except ProtocolError as error:
            self._link.abandon(str(error))
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
            raise ProtocolError("the broker has no memory of this connection any more: register again")
        session.settle(attach.number, attach.previous, attach.received)
        self._session = session
        self._link.send_control(messages.encode(Attached()))
        session.carry(self._link, attach.number)

    def resume(self, attach: Attach, link: Link) -> None:
        """Continue on a new connection; ProtocolError if the holder's message counts are impossible."""
        received = self._session.settle(attach.number, attach.previous, attach.received)
        if self._expiry is not None:
            self._expiry.cancel()
        self._link.abandon("superseded by a newer connection")
        self._link = link
        link.send_control(messages.encode(Attached(received)))
        self._session.carry(link, attach.number)

    def closed(self, reason: str) -> None:
        """Note that the current connection closed."""
        self._session.lose()
        link = self._link
        if self._is_over or link.cause != "trouble":
            self._end(reason)
            return
        lease = link.timeouts.lease_seconds
        left = max(0.0, link.last_heard + lease - time.monotonic())
        words = why_over(str(link.peer), lease, reason)
        self._expiry = asyncio.get_running_loop().call_later(left, self._end, words)

    async def close(self, reason: str) -> None:
        """End the session and tell the holder why."""
        self._is_over = True
        await self._link.close(reason)
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._session.close()
        gone, self._gone = self._gone, _nobody
        gone(self, reason)


def _nobody(line: HolderSession, reason: str) -> None:
    """Replace the callback after the end was reported."""


class SessionRegistry:
    """Sessions by worker and by job. A submitter may have several sessions, each with its own jobs."""

    def __init__(self) -> None:
        self.workers: dict[str, HolderSession] = {}
        self.jobs: dict[str, HolderSession] = {}

    def is_worker(self, line: HolderSession) -> bool:
        """Whether this is the current session of a registered worker."""
        return self.workers.get(line.peer.id) is line

    def jobs_over(self, line: HolderSession) -> list[str]:
        """The open jobs that were submitted over this session."""
        return [job for job, found in self.jobs.items() if found is line]

    def receiver(
        self, command: Command, origin: HolderSession | None
    ) -> tuple[HolderSession, Message] | None:
        """The session that gets a command's message; None if it is closed or the command has no message."""
        match command:
            case Send(worker, message):
                line = self.workers.get(worker)
            case Tell(job, message):
                line = self.jobs.get(job)
            case Reply(message):
                line = origin
            case Reject(reason, for_now):
                line, message = origin, Denied(reason, for_now)
            case _:
                return None
        return None if line is None else (line, message)

    def replaced(self, command: Command, origin: HolderSession | None) -> HolderSession | None:
        """Register an admitted worker's session; returns the session that it replaces."""
        if not isinstance(command, Admit) or origin is None:
            return None
        older = self.workers.get(command.worker)
        self.workers[command.worker] = origin
        return older

    def drop(self, line: HolderSession) -> None:
        """Forget a session that has ended."""
        if self.is_worker(line):
            del self.workers[line.peer.id]
        for job in self.jobs_over(line):
            del self.jobs[job]

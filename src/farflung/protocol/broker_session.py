"""A holder's control session with its broker, which survives lost connections; and certificate renewal.

`dial_broker` makes one connection, `BrokerSession` keeps a session over successive connections, and `Renewal`
replaces the certificate at half of its life.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from farflung.errors import AnotherAuthority, ConnectionFailed, FarflungError, ProtocolError
from farflung.protocol.messages import Attach, Attached, Message, Renew, Renewed, decode, encode
from farflung.transport.endpoint import Handler, Hello, Link, Peer, dial_any
from farflung.transport.failures import why_given_up
from farflung.transport.link.session import Session
from farflung.transport.net.redial import redial
from farflung.transport.security.enrolment import renew_ended
from farflung.transport.security.identity import Identity
from farflung.transport.security.names import BROKER_ID
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import DataHeader

log = logging.getLogger("farflung.protocol")


class SessionListener(Protocol):
    """The owner of a broker session; its methods are called on the event loop."""

    def on_message(self, message: Any) -> None:
        """Handle a message from the broker, one of the session's union."""

    def on_reconnect(self) -> None:
        """Handle that a new connection has replaced a lost one."""

    def on_disconnect(self, reason: str) -> None:
        """Handle the end of the session; called at most once, and not after `close`."""


class BrokerSession:
    """A control session with the broker.

    If the network breaks a connection, the session dials again until the lease ends, and no message is lost.
    If the broker closes the connection or its process dies, the session ends at once.

    Attributes
    ----------
    link : The newest connection.
    """

    link: Link

    def __init__(
        self, union: Any, listener: SessionListener, dial: Callable[[Handler], Awaitable[Link]]
    ) -> None:
        self._union = union
        self._listener = listener
        self._dial = dial
        self._session = Session(secrets.token_hex(16))
        self._claimed: tuple[Link, int] | None = None
        self._settled = asyncio.Event()
        self._redialling: asyncio.Task[None] | None = None
        self._is_over = False

    async def open(self) -> None:
        """Dial the broker.

        Raises
        ------
        ConnectionFailed
            The broker cannot be reached, or it is not the broker of this identity.
        """
        self.link = await self._dial(self)
        self._claim(self.link)

    @property
    def timeouts(self) -> Timeouts:
        """The broker's timeouts."""
        return self.link.timeouts

    def send(self, message: Message) -> None:
        """Send a message. It arrives exactly once, or the session ends."""
        self._session.send_control(encode(message))

    async def close(self, reason: str) -> None:
        """End the session and tell the broker why."""
        self._is_over = True
        if self._redialling is not None:
            self._redialling.cancel()
            await asyncio.gather(self._redialling, return_exceptions=True)
        claimed = self._release_claimed(reason)
        await asyncio.gather(*(link.close(reason) for link in (self.link, *claimed)))
        self._session.close()

    # Callbacks of connections (transport.endpoint.Handler)

    def control(self, link: Link, message: bytes) -> None:
        decoded = decode(message, self._union)
        if not isinstance(decoded, Attached):
            self._listener.on_message(decoded)
            return
        if self._claimed is None or self._claimed[0] is not link:
            raise ProtocolError("the broker attached a link twice")
        number = self._claimed[1]
        self._session.exchange_receipts(number, self._session.number, decoded.received)
        self._claimed, self.link = None, link
        self._session.carry(link, number)
        self._settled.set()

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        raise ProtocolError("the broker sent data: it only ever sends control messages")

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        raise AssertionError("nothing was opened")

    def closed(self, link: Link, reason: str) -> None:
        self._settled.set()
        if self._claimed is not None and self._claimed[0] is link:
            self._claimed = None
        if link is not self.link:
            # If the broker itself closed the connection that was to replace a lost one, the session is over.
            if link.cause == "closed":
                self._lose(f"{self.link.reason}; {reason}")
            return
        self._session.on_link_lost()
        if link.cause == "network" and not self._is_over:
            log.warning("lost the connection to the broker (%s); dialling again", reason)
            self._redialling = asyncio.create_task(self._redial(reason))
        else:
            self._lose(reason)

    def _claim(self, link: Link) -> None:
        session, number = self._session, self._session.next_number()
        self._claimed = (link, number)
        self._settled.clear()
        link.send_control(encode(Attach(session.nonce, number, session.number, session.receipt)))

    async def _redial(self, reason: str) -> None:
        lost, timeouts = self.link, self.link.timeouts

        async def attempt() -> None:
            link = await self._dial(self)
            if self._claimed is not None:
                self._claimed[0].abandon("superseded by a newer connection")
            if self.link is lost:
                self._claim(link)
                await self._settled.wait()
            else:
                link.abandon("not needed any more")

        left = lost.last_received_at + timeouts.lease_seconds - time.monotonic()
        failure = await redial(attempt, lambda: self._is_over or self.link is not lost, timeouts, left)
        if failure:
            log.info("the broker cannot be reached again: %s", failure)
            self._lose(why_given_up("the broker", timeouts.lease_seconds, reason))
        elif not self._is_over:
            self._listener.on_reconnect()

    def _lose(self, reason: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._release_claimed(reason)
            self._session.close()
            self._listener.on_disconnect(reason)

    def _release_claimed(self, reason: str) -> list[Link]:
        """Abandon a connection that the broker has not attached yet."""
        claimed, self._claimed = self._claimed, None
        if claimed is None:
            return []
        claimed[0].abandon(reason)
        return [claimed[0]]


async def dial_broker(
    identity: Identity, handler: Handler, timeouts: Timeouts, context: ssl.SSLContext | None = None
) -> Link:
    """Open a control connection to the broker of `identity`, at whichever of its addresses it answers first.

    `context` reuses an existing TLS context of the identity.

    Raises
    ------
    AnotherAuthority
        The broker at this address did not issue this identity.
    ConnectionFailed
        The broker cannot be reached, or refuses.
    """
    hello = Hello(identity.id, identity.role, "control")
    broker = Peer(BROKER_ID, "broker")
    own = context or identity.client_context()
    try:
        return await dial_any(identity.broker_addresses, own, hello, broker, handler, timeouts)
    except AnotherAuthority:
        raise AnotherAuthority(_wrong_broker_message(identity)) from None


def _wrong_broker_message(identity: Identity) -> str:
    joined_at = identity.joined_at()
    issuer = "one that was there before" if joined_at == identity.broker else f"the one at {joined_at}"
    return (
        f"the broker at {identity.broker} does not know the identity in {identity.folder}: {identity.role}"
        f" {identity.id} belongs to another broker, {issuer}; create a token on this broker's machine"
        f" (farflung token create --role {identity.role}) and add --token, with a separate --folder"
        " to keep both"
    )


class Renewal:
    """Renews a holder's certificate at half of its life. Open connections keep the old one."""

    def __init__(self, identity: Identity, contexts: Sequence[ssl.SSLContext]) -> None:
        self.identity = identity
        self._contexts = contexts
        self._renewed_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def start(self, send: Callable[[Message], None], every_seconds: float) -> None:
        """Check the certificate now, and at least every `every_seconds`; `send` sends to the broker."""
        if self._timer is not None:
            self._timer.cancel()
        left = self.identity.renewal_due_at - time.time()
        if left <= 0:
            left = min(every_seconds, self.identity.lifetime_seconds / 4)
            # By a clock that is far ahead of the broker's, even a new certificate is due at once.
            if time.monotonic() >= self._renewed_at + left:
                send(Renew(self.identity.renewal_request()))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(min(left, every_seconds), self.start, send, every_seconds)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def renewed(self, answer: Renewed) -> None:
        """Store the new certificate and use it for new connections."""
        try:
            self.identity = self.identity.renewed(answer.certificate, answer.authorities)
        except FarflungError as error:
            log.warning("the renewed certificate was refused: %s", error)
            return
        self._renewed_at = time.monotonic()
        self._use()

    async def renew_ended(self) -> bool:
        """Renew a certificate that has ended; False if the broker does not answer.

        Raises
        ------
        IdentityError
            The broker refuses: no broker would ever admit this holder again.
        """
        try:
            self.identity = await renew_ended(self.identity)
        except ConnectionFailed:
            return False
        self._use()
        return True

    def _use(self) -> None:
        for context in self._contexts:
            self.identity.present_in(context)
        log.info("the certificate was renewed")

"""A worker's line to its broker: it registers, and registers again whenever the broker is lost."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from farflung.errors import AnotherAuthority, ConnectionFailed
from farflung.protocol import messages
from farflung.protocol.broker_session import BrokerSession, Renewal, dial_broker
from farflung.protocol.copies import HeldCopy
from farflung.protocol.messages import Message, Register
from farflung.transport.endpoint import Handler, Link
from farflung.transport.net.redial import Pauses
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts

log = logging.getLogger("farflung.worker")


class LineOwner(Protocol):
    """Whose line it is; its methods are called on the event loop."""

    @property
    def is_awaited(self) -> bool:
        """Whether a job waits for each second without the broker."""

    async def held_copies(self) -> list[HeldCopy]:
        """The copies on this worker's disk."""

    def registration(self, session: BrokerSession, held: list[HeldCopy]) -> Register:
        """What to say first in a new session, whose timeouts hold from now on."""

    def from_broker(self, message: Any) -> None:
        """Handle a message from the broker."""

    def broker_back(self, session: BrokerSession) -> None:
        """A new connection has replaced a lost one in the same session."""

    def broker_lost(self, reason: str) -> None:
        """The session is over; another one will be tried."""


class BrokerLine:
    """The newest session with the broker, and the certificate that is renewed over it."""

    def __init__(
        self, identity: Identity, client: ssl.SSLContext, server: ssl.SSLContext, owner: LineOwner
    ) -> None:
        self._identity, self._client_context, self._owner = identity, client, owner
        self._renewal = Renewal(identity, [client, server])
        self._timeouts = Timeouts()
        self._session: BrokerSession | None = None
        self._gone = asyncio.Event()
        self._loss_reason = ""
        self._denied: messages.Denied | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def stay_registered(self, timeouts: Timeouts) -> None:
        """Keep the session with the broker; reconnect when it is lost. `timeouts` hold until one is there.

        Raises ConnectionFailed if the broker refuses this worker. If its id is in use, only the second
        refusal counts, because the process that had it may just have died (after a reboot, say). Raises
        AnotherAuthority if this is not the broker of this identity; but once connected to the right broker,
        the worker waits for it, even if another one answers meanwhile. Raises IdentityError if it must
        connect anew, its certificate has ended and the broker does not renew it.
        """
        self._timeouts = timeouts
        pauses, asked_again, was_there, said = Pauses(), False, False, ""
        while True:
            try:
                await self._register()
            except ConnectionFailed as error:
                if isinstance(error, AnotherAuthority) and not was_there:
                    raise
                if self._renewal.identity.has_ended and await self._renewal.renew_ended():
                    continue
                if str(error) != said:
                    said = str(error)
                    log.warning("%s; trying again", said)
                await asyncio.sleep(pauses.next(self._timeouts, self._owner.is_awaited))
                continue
            began, was_there, said = time.monotonic(), True, ""
            await self._gone.wait()
            pauses.session_over(time.monotonic() - began, self._timeouts)
            denied, self._denied = self._denied, None
            if denied is None:
                asked_again = False
                log.warning("lost the broker (%s); dialling again", self._loss_reason)
                self._owner.broker_lost(self._loss_reason)
                await asyncio.sleep(pauses.next(self._timeouts, self._owner.is_awaited))
            elif asked_again or not denied.for_now:
                raise ConnectionFailed(f"the broker refused this worker: {denied.reason}")
            else:
                asked_again = True
                silence = self._timeouts.suspect_seconds
                log.warning("%s; asking once more in %.1f s, lest it died just now", denied.reason, silence)
                await asyncio.sleep(silence)

    def send(self, message: Message) -> None:
        """Send a message, if there is a session."""
        if self._session is not None:
            self._session.send(message)

    async def hang_up(self, reason: str) -> None:
        """End the session, as if the broker had been lost."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close(reason)
            self.on_disconnect(reason)

    def stop_renewing(self) -> None:
        """Ask for no other certificate, and end what is under way."""
        self._renewal.stop()
        for task in self._background:
            task.cancel()

    async def close(self, reason: str) -> None:
        """End the session for good."""
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._session is not None:
            await self._session.close(reason)

    async def _register(self) -> None:
        self._gone.clear()
        session = BrokerSession(messages.ToWorker, self, self._dial)
        await session.open()
        held = await self._owner.held_copies()
        if self._gone.is_set():
            return  # lost again meanwhile
        self._session, self._timeouts = session, session.timeouts
        self.send(self._owner.registration(session, held))
        self._renewal.start(self.send, self._timeouts.certificate_check_seconds)

    async def _dial(self, handler: Handler) -> Link:
        return await dial_broker(self._identity, handler, self._timeouts, self._client_context)

    # protocol.broker_session.SessionListener

    def on_message(self, message: Any) -> None:
        """Renew the certificate, note a refusal, and pass everything else on."""
        if isinstance(message, messages.Renewed):
            self._spawn(self._take_certificate(message))
        elif isinstance(message, messages.Denied):
            self._denied = message
        else:
            self._owner.from_broker(message)

    def on_reconnect(self) -> None:
        """A new connection has replaced a lost one."""
        log.info("linked to the broker again")
        if self._session is not None:
            self._owner.broker_back(self._session)

    def on_disconnect(self, reason: str) -> None:
        """The session is over."""
        self._session = None
        self._loss_reason = reason
        self._gone.set()

    async def _take_certificate(self, answer: messages.Renewed) -> None:
        await asyncio.to_thread(self._renewal.renewed, answer)
        self._renewal.start(self.send, self._timeouts.certificate_check_seconds)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

"""The submitter's connection: its session with the broker, its routes to workers, and its certificate."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from farflung.client.run.broker_client import Lost, open_broker_session
from farflung.client.run.worker_session import WorkerRoutes
from farflung.errors import ConnectionFailed
from farflung.protocol.broker_session import BrokerSession, Renewal
from farflung.protocol.messages import Message, Renewed
from farflung.transport.net.redial import Pauses
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts

MOST_SHORT, MOST_SHORT_UNKNOWN = 10, 2
"""So many sessions in a row that ended as soon as they began are not due to restarts of the broker."""

log = logging.getLogger("farflung.client")


class Connection:
    """Sends messages to the broker and passes its messages to `hear`; renews the certificate in time.

    `timeouts` are the broker's once it is open. `is_open` says whether there is a session now in which this
    process was introduced: what is sent without one is lost.
    """

    def __init__(self, identity: Identity, hear: Callable[[Message | Lost], None]) -> None:
        self._identity = identity
        self._hear = hear
        self._broker: BrokerSession | None = None
        self._routes: WorkerRoutes | None = None
        self._renewal: Renewal | None = None
        self._opened_at = 0.0
        self._pauses = Pauses()
        self.timeouts = Timeouts()
        self.is_open = False

    @property
    def address(self) -> str:
        """HOST:PORT of the broker."""
        return self._identity.broker

    @property
    def routes(self) -> WorkerRoutes:
        """The routes to workers; there are none before `open`."""
        assert self._routes is not None
        return self._routes

    async def open(self) -> None:
        """Open the session with the broker, and prepare to connect to workers.

        Raises
        ------
        FarflungError
            The broker cannot be reached, or refuses this holder.
        """
        await self._open_session()
        self.is_open = True
        self._routes = WorkerRoutes(self._identity, self.timeouts, self.send, self._reached_at)
        self._renewal = Renewal(self._identity, self._routes.contexts)
        self._renewal.start(self.send, self.timeouts.certificate_check_seconds)

    def lost(self, is_known: bool) -> bool:
        """Note that the session is over; returns whether it makes sense to open another one.

        A broker that ends session after session soon refuses this holder, or a job that it does not know yet.
        """
        self.is_open = False
        self._pauses.session_over(time.monotonic() - self._opened_at, self.timeouts)
        return self._pauses.short < (MOST_SHORT if is_known else MOST_SHORT_UNKNOWN)

    async def reopen(self, patience_seconds: float) -> None:
        """Open another session, with pauses between attempts; `introduce` must follow.

        Raises
        ------
        ConnectionFailed
            The broker could not be reached in that time.
        IdentityError
            The certificate has ended meanwhile, and the broker does not renew it.
        """
        deadline = time.monotonic() + patience_seconds
        said = ""
        while True:
            await asyncio.sleep(self._pauses.next(self.timeouts, job_waits=True))
            try:
                await self._open_session()
            except ConnectionFailed as error:
                if time.monotonic() >= deadline:
                    raise
                renewal = self._renewal
                if renewal is not None and renewal.identity.has_ended and await renewal.renew_ended():
                    continue
                if str(error) != said:
                    said = str(error)
                    log.info("%s; trying again", said)
            else:
                return

    async def _open_session(self) -> None:
        self._broker = await open_broker_session(self._identity, self.timeouts, self._hear)
        self.timeouts = self._broker.timeouts
        self._opened_at = time.monotonic()

    def introduce(self, message: Message) -> None:
        """Send the first message of a session, before which the broker takes no other."""
        self.is_open = True
        self.send(message)

    def _reached_at(self) -> str:
        """Which of the broker's addresses the newest session uses."""
        assert self._broker is not None
        return self._broker.link.remote

    def send(self, message: Message) -> None:
        """Send a message to the broker; without effect if there is no session."""
        if self._broker is not None and self.is_open:
            self._broker.send(message)

    async def take_certificate(self, answer: Renewed) -> None:
        """Use a renewed certificate from now on."""
        if self._renewal is not None:
            await asyncio.to_thread(self._renewal.renewed, answer)
            self._renewal.start(self.send, self.timeouts.certificate_check_seconds)

    async def close(self, reason: str) -> None:
        """Close the port for workers and the session with the broker."""
        if self._renewal is not None:
            self._renewal.stop()
        if self._routes is not None:
            await self._routes.close(reason)
        if self._broker is not None:
            await self._broker.close(reason)

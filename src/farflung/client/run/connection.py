"""The submitter's connection: its session with the broker, its routes to workers, and its certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farflung.client.run.broker_client import Lost, open_broker_session
from farflung.client.run.worker_session import WorkerRoutes
from farflung.protocol.broker_session import BrokerSession, Renewal
from farflung.protocol.messages import Message
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts


class Connection:
    """Sends messages to the broker and passes its messages to `hear`; renews the certificate in time.

    `timeouts` are the broker's once it is open.
    """

    def __init__(self, identity: Identity, hear: Callable[[Message | Lost], None]) -> None:
        self._identity = identity
        self._hear = hear
        self._broker: BrokerSession | None = None
        self._routes: WorkerRoutes | None = None
        self._renewal: Renewal | None = None
        self.timeouts = Timeouts()

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
        self._broker = await open_broker_session(self._identity, self.timeouts, self._hear)
        self.timeouts = self._broker.timeouts
        self._routes = WorkerRoutes(self._identity, self.timeouts, self.send)
        self._renewal = Renewal(self._identity, self._routes.contexts)
        self._renewal.start(self.send, self.timeouts.certificate_check_seconds)

    def send(self, message: Message) -> None:
        """Send a message to the broker; without effect before `open`."""
        if self._broker is not None:
            self._broker.send(message)

    async def take_certificate(self, certificate: bytes) -> None:
        """Use a renewed certificate from now on."""
        if self._renewal is not None:
            await asyncio.to_thread(self._renewal.renewed, certificate)
            self._renewal.start(self.send, self.timeouts.certificate_check_seconds)

    async def close(self, reason: str) -> None:
        """Close the port for workers and the session with the broker."""
        if self._renewal is not None:
            self._renewal.stop()
        if self._routes is not None:
            await self._routes.close(reason)
        if self._broker is not None:
            await self._broker.close(reason)

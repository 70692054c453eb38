"""The submitter's connections: a control link to the broker, a data link to each worker of the plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from farflung.client.feeder import Feeder
from farflung.client.paths import Paths
from farflung.client.state_transfer import StateCollector
from farflung.errors import ConnectionFailed, ProtocolError
from farflung.protocol.messages import Claim, FromPeer, Message, Planned, ToSubmitter, Welcome, decode, encode
from farflung.transport.endpoint import Hello, Link, Peer, dial
from farflung.transport.headers import DataHeader, SliceHeader, ValueHeader
from farflung.transport.identity import Identity
from farflung.transport.names import BROKER_ID
from farflung.transport.timeouts import Timeouts


def hello(identity: Identity, kind: Literal["control", "data"]) -> Hello:
    """What this process says first on a connection."""
    return Hello(id=identity.id, role=identity.role, kind=kind)


@dataclass(frozen=True)
class Lost:
    """A link is gone: `peer` is a worker's id, or `broker`."""

    peer: str
    reason: str


class BrokerHandler:
    """Passes on what the broker says."""

    def __init__(self, hear: Callable[[Message | Lost], None]) -> None:
        self._hear = hear

    def control(self, link: Link, message: bytes) -> None:
        self._hear(decode(message, ToSubmitter))

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        raise ProtocolError("the broker sent data: it only ever sends control messages")

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        raise AssertionError("nothing was opened")

    def closed(self, link: Link, reason: str) -> None:
        self._hear(Lost(BROKER_ID, reason))


class WorkerHandler:
    """Takes a worker's answers to the feeder, and the state it gives back at the end."""

    def __init__(
        self,
        worker: str,
        welcome: Welcome,
        feeder: Feeder,
        collector: StateCollector,
        hear: Callable[[Lost], None],
    ) -> None:
        self._worker = worker
        self._expected = welcome
        self._feeder = feeder
        self._collector = collector
        self._hear = hear
        self.welcomed = asyncio.Event()

    @property
    def claim(self) -> Claim:
        """What is said first: which attempt the link is for."""
        return Claim(self._expected.job, self._expected.attempt)

    def control(self, link: Link, message: bytes) -> None:
        welcome = decode(message, FromPeer)
        if not isinstance(welcome, Welcome):
            raise ProtocolError(f"worker {self._worker} claims a link that this process dialled")
        if welcome != self._expected:
            raise ProtocolError(f"worker {self._worker} welcomed {welcome.job}, attempt {welcome.attempt}")
        self.welcomed.set()

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        if isinstance(header, SliceHeader):
            return self._collector.opening(self._worker, header)
        if not isinstance(header, ValueHeader):
            raise ProtocolError(f"worker {self._worker} sent a probe's bytes on a link for data")
        self._feeder.finished(self._worker, header)
        return memoryview(bytearray())

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        if isinstance(header, SliceHeader):
            self._collector.complete(header)

    def closed(self, link: Link, reason: str) -> None:
        self._hear(Lost(self._worker, reason))


async def dial_broker(identity: Identity, timeouts: Timeouts, hear: Callable[[Message | Lost], None]) -> Link:
    """The control link to the broker that the identity joined.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, or is another one.
    """
    return await dial(
        identity.broker,
        identity.client_context(),
        hello(identity, "control"),
        Peer(BROKER_ID, "broker"),
        BrokerHandler(hear),
        timeouts,
    )


async def link_worker(paths: Paths, planned: Planned, worker: str, handler: WorkerHandler) -> Link:
    """A data link to a worker of the plan, once it has welcomed it.

    Raises
    ------
    ConnectionFailed
        No way leads to the worker, or it did not welcome the link in time.
    """
    link = await paths.connect(planned, worker, handler)
    link.send_control(encode(handler.claim))
    return await _welcomed(link, worker, handler, paths.timeouts)


async def _welcomed(link: Link, worker: str, handler: WorkerHandler, timeouts: Timeouts) -> Link:
    try:
        async with asyncio.timeout(timeouts.link_seconds):
            await handler.welcomed.wait()
    except asyncio.CancelledError:
        await link.close("the run is over")
        raise
    except TimeoutError:
        await link.close("not welcomed")
        raise ConnectionFailed(
            f"worker {worker} did not welcome its data link within {timeouts.link_seconds:.0f} s"
        ) from None
    return link

"""A worker's end of data links: its session, and nothing else of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farflung.errors import ProtocolError
from farflung.protocol.messages import Claim, FromPeer, Welcome, decode, encode
from farflung.transport.endpoint import Handler, Link
from farflung.transport.link.session import Session
from farflung.transport.wire.headers import DataHeader

WELCOME = Welcome("job-1", 1)
WAIT_SECONDS = 60.0


class Told:
    """What came in, and a wait for it."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


class Worker(Told):
    """Welcomes whoever claims, unless it is `mute`, and keeps what comes whole."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.claims: list[Claim] = []
        self.messages: list[tuple[DataHeader, bytes]] = []
        self.session: Session | None = None
        self.mute = False
        self.refusal = ""
        self.welcome = WELCOME

    def accept(self, link: Link) -> Handler:
        self.links.append(link)
        return self

    def control(self, link: Link, message: bytes) -> None:
        claim = decode(message, FromPeer)
        assert isinstance(claim, Claim)
        self.claims.append(claim)
        self.changed.set()
        if self.refusal:
            raise ProtocolError(self.refusal)
        if self.mute:
            return
        if self.session is None:
            self.session = Session(claim.session)
        received = self.session.exchange_receipts(claim.number, claim.previous, claim.received)
        link.send_control(encode(Welcome(self.welcome.job, self.welcome.attempt, received)))
        self.session.carry(link, claim.number)

    def opening(self, link: Link, header: DataHeader) -> memoryview:
        return memoryview(bytearray(header.bytes))

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        self.messages.append((header, bytes(buffer)))
        self.changed.set()

    def closed(self, link: Link, reason: str) -> None:
        if self.session is not None and link is self.links[-1]:
            self.session.on_link_lost()
        self.changed.set()

"""A real broker on a real port, and members who hold real certificates but only pretend to work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from farflung.broker.security.authority import Authority, create_token
from farflung.broker.service import BrokerService
from farflung.broker.storage.store import Store
from farflung.errors import ProtocolError
from farflung.protocol import messages
from farflung.protocol.fields import Opset
from farflung.protocol.messages import Begin, Decide, Load, Loaded, Message, Register, SendState
from farflung.protocol.registration import Device
from farflung.protocol.worker import Share
from farflung.transport.endpoint import dial
from farflung.transport.link.link import Link
from farflung.transport.security.certificates import LIFETIME_SECONDS, certificate_to_pem, signing_request
from farflung.transport.security.enrolment import enrol
from farflung.transport.security.identity import Identity, key_in
from farflung.transport.security.join_messages import AskCertificate
from farflung.transport.security.names import BROKER_ID
from farflung.transport.security.peer import Peer
from farflung.transport.security.tokens import Token, TokenRole
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import Hello
from farflung.transport.wire.headers import DataHeader

TIMEOUTS = Timeouts(10.0)
BROKER = Peer(BROKER_ID, "broker")
DEVICE = Device("cpu", "pretended", 1, 2**30, "2.13.0", Opset.own())
WAIT_SECONDS = 60.0

AMessage = TypeVar("AMessage", bound=Message)


@asynccontextmanager
async def broker(
    folder: Path,
    timeouts: Timeouts = TIMEOUTS,
    certificate_seconds: float = LIFETIME_SECONDS,
    port: int = 0,
) -> AsyncIterator[BrokerService]:
    """A broker on `folder` and a port of this machine, any that is free without one."""
    with Store(folder) as store:
        service = BrokerService(folder, store, timeouts, certificate_seconds=certificate_seconds)
        await service.start(f"127.0.0.1:{port}")
        running = asyncio.create_task(service.run())
        try:
            yield service
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await service.stop()


async def identity(
    service: BrokerService, folder: Path, id: str, role: TokenRole, token: Token | None = None
) -> Identity:
    """Join as `id`; the broker's folder is `folder`, the holder's lies beside it."""
    own = folder.parent / f"{role}-{id}"
    if (own / "identity.json").exists():
        return Identity.load(own)
    token = token or await asyncio.to_thread(create_token, folder, role)
    return (await enrol(service.address, token, own, role, id)).identity


def joined_earlier(
    hub: Path, folder: Path, days_ago: float, lifetime_seconds: float = LIFETIME_SECONDS
) -> Identity:
    """A worker that joined some days ago, whose certificate is as old."""
    with Store(hub) as store:
        clock = partial(_days_ago, days_ago)
        authority = Authority.open(hub, store, clock, lifetime_seconds)
        request = signing_request(key_in(folder), "a", "worker")
        secret = authority.create_token("worker").secret
        certificate = authority.enrol(AskCertificate(secret, "a", "worker", request))
        return Identity.write(folder, certificate, certificate_to_pem(authority.certificate), "127.0.0.1:9")


def _days_ago(days: float) -> float:
    return time.time() - days * 86_400


class Member:
    """One link to the broker; what the broker says waits in a queue."""

    def __init__(self, union: Any) -> None:
        self._union = union
        self._heard: asyncio.Queue[Message] = asyncio.Queue()
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.link: Link

    @classmethod
    async def dial(cls, service: BrokerService, identity: Identity) -> Any:
        """Connect; the link is over when `gone` has its reason."""
        unions = {"worker": messages.ToWorker, "submitter": messages.ToSubmitter, "viewer": messages.ToViewer}
        member = cls(unions[identity.role])
        hello = Hello(id=identity.id, role=identity.role, boot="test", kind="control")
        context = identity.client_context()
        member.link = await dial(service.address, context, hello, BROKER, member, TIMEOUTS)
        return member

    def say(self, message: Message) -> None:
        self.link.send_control(messages.encode(message))

    async def hear(self, kind: type[AMessage]) -> AMessage:
        """The next message, which must be of this kind."""
        message = await asyncio.wait_for(self._heard.get(), WAIT_SECONDS)
        assert isinstance(message, kind), message
        return message

    async def lost(self) -> str:
        """Why the link ended."""
        return await asyncio.wait_for(asyncio.shield(self.gone), WAIT_SECONDS)

    @property
    def silent(self) -> bool:
        """Whether nothing that the broker said is left unheard."""
        return self._heard.empty()

    def drop(self) -> None:
        """Go away without a word, as a killed process does."""
        self.link._transport.abort()

    def freeze(self) -> None:
        """Fall silent with an open connection, as a stopped process does."""
        heartbeat = self.link._heartbeat
        assert heartbeat is not None
        heartbeat.stop()
        self.link._transport.pause_reading()

    def control(self, link: Link, message: bytes) -> None:
        self._heard.put_nowait(messages.decode(message, self._union))

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        raise ProtocolError("no data is expected here")

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        raise AssertionError("nothing was opened")

    def closed(self, link: Link, reason: str) -> None:
        self.gone.set_result(reason)


class PretendedWorker(Member):
    """Loads anything and is ready with made-up shares."""

    @classmethod
    async def join(
        cls, service: BrokerService, folder: Path, id: str, boot: str = "boot-1", **fields: Any
    ) -> PretendedWorker:
        worker: PretendedWorker = await cls.dial(service, await identity(service, folder, id, "worker"))
        worker.say(Register(DEVICE, "lab", ["0.0.0.0:7001"], boot, **fields))
        worker.id = id
        return worker

    id: str
    load: Load

    async def prepare(self) -> None:
        self.load = await self.hear(Load)
        self.say(Loaded(self.load.job, self.load.attempt))
        await self.hear(Begin)

    def ready(self, unit: int, **share: Any) -> None:
        values = {"finite": True, "loss": 0.25, **share}
        mine = self.load.plan.segments_of(self.id)
        shares = [Share(number, squares={number: 1.0}, **values) for number in mine]
        self.say(messages.UnitReady(self.load.job, self.load.attempt, unit, shares, 100))

    async def work(self, units: int) -> None:
        """Take part from the load to the hand-over of the state."""
        await self.prepare()
        for unit in range(units):
            self.ready(unit)
            assert (await self.hear(Decide)).unit == unit
        await self.hear(SendState)

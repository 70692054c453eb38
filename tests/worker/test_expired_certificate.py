"""A holder whose certificate has ended renews it by its key, or ends with the cure."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.broker_fleet import DEVICE, broker, identity

from farflung.broker.security import authority as authorities
from farflung.client.beginning import joining
from farflung.errors import ConnectionFailed, IdentityError
from farflung.protocol.broker_session import Renewal
from farflung.protocol.messages import Register, Registered
from farflung.transport.net.addresses import parse_address
from farflung.transport.security import identity as identities
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts
from farflung.worker.broker_line import BrokerLine

TIMEOUTS = Timeouts(2.0)


class Owner:
    """A worker that holds nothing."""

    is_awaited = False

    def __init__(self) -> None:
        self.registered = asyncio.Event()
        self.lost = asyncio.Event()

    async def held_copies(self) -> list[Any]:
        return []

    def registration(self, session: object, held: object) -> Register:
        return Register(DEVICE, "", ["127.0.0.1:9"], "boot")

    def from_broker(self, message: Any) -> None:
        if isinstance(message, Registered):
            self.registered.set()

    def broker_back(self, session: object) -> None: ...

    def broker_lost(self, reason: str) -> None:
        self.lost.set()


def test_a_worker_whose_certificate_has_ended_renews_it_when_its_broker_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed, tried = asyncio.Event(), asyncio.Event()
    dial, use = BrokerLine._dial, Renewal._use

    async def admitted(line: BrokerLine, handler: Any) -> Any:
        """As with a broker that refuses certificates that have ended."""
        tried.set()
        if not renewed.is_set():
            raise ConnectionFailed("the certificate has expired")
        return await dial(line, handler)

    def in_use(renewal: Renewal) -> None:
        use(renewal)
        renewed.set()

    monkeypatch.setattr(BrokerLine, "_dial", admitted)
    monkeypatch.setattr(Renewal, "_use", in_use)
    monkeypatch.setattr(Identity, "has_ended", property(lambda own: not renewed.is_set()))

    async def scene() -> None:
        async with broker(tmp_path / "hub", TIMEOUTS) as service:
            own, owner = await identity(service, tmp_path / "hub", "a", "worker"), Owner()
            port = parse_address(service.address)[1]
        line = BrokerLine(own, own.client_context(), own.server_context(False), owner)
        staying = asyncio.create_task(line.stay_registered(TIMEOUTS))
        await asyncio.wait_for(tried.wait(), 30)
        assert not staying.done()
        async with broker(tmp_path / "hub", TIMEOUTS, port=port):
            await asyncio.wait_for(owner.registered.wait(), 30)
            assert renewed.is_set() and not staying.done()
            staying.cancel()
            await line.close("seen")
        fresh = Identity.load(own.folder)
        assert fresh.certificate.serial_number != own.certificate.serial_number
        line.stop_renewing()

    asyncio.run(scene())


def test_a_worker_that_its_broker_does_not_renew_says_how_to_join_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker has removed it, or it was away for too long."""

    async def scene() -> None:
        async with broker(tmp_path / "hub", TIMEOUTS) as service:
            own, owner = await identity(service, tmp_path / "hub", "a", "worker"), Owner()
            monkeypatch.setattr(Identity, "has_ended", True)

            async def refused(*given: object) -> None:
                raise ConnectionFailed("the certificate has expired")

            monkeypatch.setattr(BrokerLine, "_dial", refused)
            monkeypatch.setattr(authorities, "RENEWABLE_SECONDS", -(10**9))
            line = BrokerLine(own, own.client_context(), own.server_context(False), owner)
            with pytest.raises(IdentityError, match=r"join again with a token \(farflung token create"):
                await asyncio.wait_for(line.stay_registered(TIMEOUTS), 30)

    asyncio.run(scene())


def test_a_command_renews_an_identity_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with broker(tmp_path / "hub", TIMEOUTS) as service:
            own, said = await identity(service, tmp_path / "hub", "a", "worker"), list[str]()
            monkeypatch.setattr(identities, "time", SimpleNamespace(time=lambda: own.expires_at + 1))
            with pytest.raises(IdentityError, match=r"the certificate of a expired at .* join again"):
                Identity.load(own.folder)
            monkeypatch.setattr(joining, "time", SimpleNamespace(time=lambda: own.expires_at + 1))
            found = await joining.obtain_identity(own.folder, "worker", None, None, tell=said.append)
            assert found.certificate.serial_number != own.certificate.serial_number
            assert said == ["the certificate of a had ended, and was renewed"]

    asyncio.run(scene())

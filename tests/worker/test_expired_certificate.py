"""A worker whose certificate has ended unrenewed ends with the cure once its session is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.broker_fleet import DEVICE, broker, identity

from farflung.errors import IdentityError
from farflung.protocol.broker_session import Renewal
from farflung.protocol.messages import Register, Registered
from farflung.transport.security import identity as identities
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


def test_a_worker_that_cannot_come_back_says_how_to_join_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Renewal, "start", lambda *_: None)

    async def scene() -> None:
        async with broker(tmp_path / "hub", TIMEOUTS) as service:
            own, owner = await identity(service, tmp_path / "hub", "a", "worker"), Owner()
            line = BrokerLine(own, own.client_context(), own.server_context(False), owner)
            staying = asyncio.create_task(line.stay_registered(TIMEOUTS))
            await asyncio.wait_for(owner.registered.wait(), 30)
            monkeypatch.setattr(identities, "time", SimpleNamespace(time=lambda: own.expires_at + 1))
            assert not staying.done() and not owner.lost.is_set()
        with pytest.raises(IdentityError, match=r"the certificate of a expired at .* farflung token create"):
            await asyncio.wait_for(staying, 30)
        line.stop_renewing()

    asyncio.run(scene())

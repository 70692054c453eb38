"""A holder whose certificate has ended renews it by its key, or ends with the cure."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_fleet import DEVICE, broker, identity, joined_earlier

from farflung.broker.security.authority import create_token
from farflung.client.beginning import joining
from farflung.client.run.broker_client import ask_to_remove
from farflung.errors import IdentityError
from farflung.protocol.broker_session import Renewal
from farflung.protocol.messages import Message, Register, Registered, Renew, Renewed
from farflung.transport.net.addresses import parse_address
from farflung.transport.security.certificates import certificate_to_pem
from farflung.transport.security.enrolment import renew_ended
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


def test_a_worker_whose_certificate_has_ended_comes_back(tmp_path: Path) -> None:
    """It was off for longer than a certificate lasts, and its broker is started after it."""
    hub = tmp_path / "hub"

    async def scene() -> None:
        own, owner = joined_earlier(hub, tmp_path / "a", days_ago=6.0), Owner()
        assert own.has_ended
        async with broker(hub, TIMEOUTS) as before:
            own = replace(own, broker=before.address)
        line = BrokerLine(own, own.client_context(), own.server_context(False), owner)
        staying = asyncio.create_task(line.stay_registered(TIMEOUTS))
        await asyncio.sleep(0)
        async with broker(hub, TIMEOUTS, port=parse_address(own.broker)[1]):
            await asyncio.wait_for(owner.registered.wait(), 30)
            assert not staying.done()
            staying.cancel()
            await line.close("seen")
        line.stop_renewing()
        assert not Identity.load(own.folder).has_ended

    asyncio.run(scene())


def test_a_removed_worker_does_not_come_back_by_its_key(tmp_path: Path) -> None:
    hub = tmp_path / "hub"

    async def scene() -> None:
        own = joined_earlier(hub, tmp_path / "a", days_ago=2.0)
        async with broker(hub, TIMEOUTS) as service:
            ana = await identity(service, hub, "ana", "operator")
            await ask_to_remove(ana, "a", "it cheats")
            at_it = replace(own, broker=service.address)
            with pytest.raises(IdentityError, match="a was removed by operator ana: it cheats"):
                await renew_ended(at_it)
            line = BrokerLine(at_it, own.client_context(), own.server_context(False), Owner())
            with pytest.raises(IdentityError, match="a was removed by operator ana: it cheats"):
                await asyncio.wait_for(line.stay_registered(TIMEOUTS), 30)
        assert Identity.load(own.folder, ended_too=True).has_ended

    asyncio.run(scene())


def test_a_worker_that_its_broker_does_not_renew_says_how_to_join_again(tmp_path: Path) -> None:
    """It was off for longer than a day and seven more."""
    hub = tmp_path / "hub"

    async def scene() -> None:
        own = joined_earlier(hub, tmp_path / "a", days_ago=8.1)
        async with broker(hub, TIMEOUTS) as service:
            at_it = replace(own, broker=service.address)
            line = BrokerLine(at_it, own.client_context(), own.server_context(False), Owner())
            with pytest.raises(IdentityError, match=r"7 days ago: join again with a token \(farflung token"):
                await asyncio.wait_for(line.stay_registered(TIMEOUTS), 30)

    asyncio.run(scene())


def test_a_command_renews_an_identity_that_has_ended(tmp_path: Path) -> None:
    hub = tmp_path / "hub"

    async def scene() -> None:
        own, said = joined_earlier(hub, tmp_path / "a", days_ago=3.0), list[str]()
        with pytest.raises(IdentityError, match=r"the certificate of a expired at .* join again"):
            Identity.load(own.folder)
        async with broker(hub, TIMEOUTS) as service:
            at = service.address
            found = await joining.obtain_identity(own.folder, "worker", at, None, tell=said.append)
            assert not found.has_ended and Identity.load(own.folder).certificate == found.certificate
            assert said == ["the certificate of a had ended, and was renewed"]

    asyncio.run(scene())


@pytest.mark.parametrize(("days_ago", "spent"), [(3.0, 0), (9.0, 1)])
def test_a_token_is_spent_only_if_the_identity_ended_too_long_ago(
    tmp_path: Path, days_ago: float, spent: int
) -> None:
    """A machine is started with the same command and token each time."""
    hub = tmp_path / "hub"

    async def scene() -> None:
        own = joined_earlier(hub, tmp_path / "a", days_ago)
        async with broker(hub, TIMEOUTS) as service:
            token = await asyncio.to_thread(create_token, hub, "worker")
            at = service.address
            found = await joining.obtain_identity(own.folder, "worker", at, token.text, "a")
            assert (found.id, found.has_ended) == ("a", False)
            record = service._store.token(token.digest)
            assert record is not None and record.used == spent

    asyncio.run(scene())


def test_a_new_certificate_that_a_wrong_clock_takes_for_old_is_not_renewed_again_at_once(
    tmp_path: Path,
) -> None:
    """A clock that was moved on by hours: the broker cuts off those that ask again and again."""
    asked: list[Message] = []

    async def scene() -> None:
        own = joined_earlier(tmp_path / "hub", tmp_path / "a", days_ago=0.6)
        renewal = Renewal(own, [])
        renewal.start(asked.append, 3600.0)
        assert [type(message) for message in asked] == [Renew]
        renewal.renewed(Renewed(certificate_to_pem(own.certificate)))
        renewal.start(asked.append, 3600.0)
        assert len(asked) == 1
        renewal.stop()

    asyncio.run(scene())

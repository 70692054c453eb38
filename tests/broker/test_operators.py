"""Operators and a real broker: what they ask for over a link, and what happens to members' links."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
from tests.support.broker_fleet import TIMEOUTS, Member, PretendedWorker, broker, identity

from farflung.broker.security.authority import Authority
from farflung.broker.service import BrokerService
from farflung.broker.storage.store import Store
from farflung.client.run.broker_client import (
    ask_members,
    ask_status,
    ask_to_allow,
    ask_to_cancel,
    ask_to_remove,
    renew,
)
from farflung.errors import ConnectionFailed, IdentityError, StoreError
from farflung.protocol.members import MemberRemoved
from farflung.protocol.messages import Denied, Registered
from farflung.transport.security.certificates import signing_request
from farflung.transport.security.identity import Identity, key_in
from farflung.transport.security.join_messages import AskCertificate
from farflung.transport.security.tokens import Token


def run(work: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(limited())


async def operator(service: BrokerService, folder: Path) -> Identity:
    return await identity(service, folder, "olga", "operator")


def test_every_link_of_a_removed_member_is_closed_and_it_hears_why(tmp_path: Path) -> None:
    async def work() -> None:
        folder = tmp_path / "hub"
        async with broker(folder) as service:
            olga = await operator(service, folder)
            first = await PretendedWorker.join(service, folder, "w-1")
            other = await PretendedWorker.join(service, folder, "w-2")
            for worker in (first, other):
                await worker.hear(Registered)
            spare = await Member.dial(service, await identity(service, folder, "w-1", "worker"))
            changed = await ask_to_remove(olga, "w-1", "it lies")
            assert (changed.member, changed.role, changed.words) == ("w-1", "worker", "")
            denied = await first.hear(Denied)
            assert not denied.for_now and denied.reason == (
                "worker w-1 was removed by operator olga: it lies; it may come back once an operator runs"
                " farflung member allow w-1"
            )
            for link in (first, spare):
                assert "w-1 was removed by operator olga: it lies" in await link.lost()
            assert (await other.hear(MemberRemoved)).member == "w-1"
            with pytest.raises(ConnectionFailed, match="w-1 was removed by operator olga"):
                await Member.dial(service, await identity(service, folder, "w-1", "worker"))
            found = {one.member: one for one in (await ask_members(olga)).members}
            assert found["w-1"].removed.startswith("was removed by operator olga: it lies (")
            assert not found["w-1"].connected and found["w-2"].connected and found["olga"].connected
        async with broker(folder) as service:  # another start of the broker
            with pytest.raises(ConnectionFailed, match="w-1 was removed by operator olga"):
                await Member.dial(service, await identity(service, folder, "w-1", "worker"))

    run(work())


@pytest.mark.parametrize("role", ["viewer", "submitter", "operator"])
def test_members_of_any_role_can_be_removed_and_allowed(tmp_path: Path, role: str) -> None:
    async def work() -> None:
        folder = tmp_path / "hub"
        async with broker(folder) as service:
            olga = await operator(service, folder)
            holder = await identity(service, folder, "vic", role)  # type: ignore[arg-type]
            await ask_status(holder)
            assert (await ask_to_remove(olga, "vic", "")).role == role
            with pytest.raises(ConnectionFailed, match=f"{role} vic was removed by operator olga"):
                await ask_status(holder)
            with pytest.raises(ConnectionFailed, match="vic was removed by operator olga"):
                await renew(holder)
            await ask_to_allow(olga, "vic")
            await ask_status(holder)
            await renew(holder)

    run(work())


def test_what_an_operator_asks_for_in_vain_is_denied(tmp_path: Path) -> None:
    async def work() -> None:
        folder = tmp_path / "hub"
        async with broker(folder) as service:
            olga = await operator(service, folder)
            for question, words in (
                (ask_to_remove(olga, "nobody", ""), "no member nobody has joined"),
                (ask_to_remove(olga, "olga", ""), "an operator cannot remove itself"),
                (ask_to_allow(olga, "nobody"), "no member nobody has joined"),
                (ask_to_allow(olga, "olga"), "nothing is held against olga"),
                (ask_to_cancel(olga, "job-9", "", False), "olga has no job job-9 here"),
            ):
                with pytest.raises(ConnectionFailed, match=words):
                    await question

    run(work())


def test_a_viewer_may_not_remove_members(tmp_path: Path) -> None:
    async def work() -> None:
        folder = tmp_path / "hub"
        async with broker(folder) as service:
            viewer = await identity(service, folder, "vic", "viewer")
            with pytest.raises(ConnectionFailed, match="a control message was refused"):
                await ask_to_remove(viewer, "vic", "")

    run(work())


def test_a_removed_member_gets_no_certificate(tmp_path: Path) -> None:
    """Neither a renewed one, nor the first once more with the token that it joined with."""
    refused: set[str] = set()
    with Store(tmp_path) as store:
        authority = Authority.open(
            tmp_path, store, refusal=lambda id: f"{id} was removed" if id in refused else ""
        )
        token = authority.create_token("worker")
        key = key_in(tmp_path / "w")
        asked = AskCertificate(token.secret, "w", "worker", signing_request(key, "w", "worker"))
        authority.enrol(asked)
        authority.enrol(asked)  # the answer may have been lost
        authority.renew("w", "worker", asked.request)
        refused.add("w")
        for attempt in (
            lambda: authority.enrol(asked),
            lambda: authority.renew("w", "worker", asked.request),
        ):
            with pytest.raises(IdentityError, match="w was removed"):
                attempt()


def test_a_removal_that_cannot_be_stored_is_not_confirmed_and_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that is read-only: the operator hears no success, and the broker stops with one line."""

    def fail(*given: object, **named: object) -> None:
        raise StoreError("the store cannot be written: attempt to write a readonly database")

    async def work() -> None:
        folder = tmp_path / "hub"
        with Store(folder) as store:
            service = BrokerService(folder, store, TIMEOUTS)
            await service.start("127.0.0.1:0")
            running = asyncio.create_task(service.run())
            olga = await operator(service, folder)
            await identity(service, folder, "w-1", "worker")
            monkeypatch.setattr(Store, "append", fail)
            asking = asyncio.create_task(ask_to_remove(olga, "w-1", ""))
            with pytest.raises(StoreError, match="readonly database"):
                await running
            assert not asking.done()
            monkeypatch.undo()
            await service.stop()
            with pytest.raises(ConnectionFailed):
                await asking

    run(work())


def test_a_wrong_token_is_refused_without_keeping_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """466 wrong joins a second slowed training threefold: each checked a signature and locked the store."""
    with Store(tmp_path) as store:
        authority = Authority.open(tmp_path, store)
        token = Token.create("worker", b"f" * 32)
        asked = AskCertificate(token.secret, "w", "worker", b"no request at all")

        def locks() -> None:
            raise AssertionError("the store is locked")

        monkeypatch.setattr(store, "transaction", locks)
        with pytest.raises(IdentityError, match="this broker does not know the token any more"):
            authority.enrol(asked)

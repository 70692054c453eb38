"""A broker whose authority has a new key: members go on, whichever of the two keys they know."""

from __future__ import annotations

import asyncio
import errno
import ssl
import time
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.broker_fleet import Member, PretendedWorker, broker, identity, joined_earlier
from tests.support.links import Recorder

from farflung.broker.backup import back_up, restore
from farflung.broker.security import rotation
from farflung.broker.security.authority import Authority, create_token
from farflung.broker.security.authority_key import AUTHORITY_KEY_FILE, IN_FOLDER, KeySource, change_passphrase
from farflung.broker.security.rotation import CROSSED_FILE, Trust, rotate
from farflung.broker.storage.contract import StoreOwned
from farflung.broker.storage.store import Store
from farflung.client.run.broker_client import ask_status, renew
from farflung.errors import ConnectionFailed, IdentityError
from farflung.protocol.messages import Registered
from farflung.transport.endpoint import Hello, Peer, dial, listen
from farflung.transport.security.certificates import certificates_from_pem, fingerprint
from farflung.transport.security.enrolment import enrol, renew_ended
from farflung.transport.security.identity import AUTHORITY_FILE, Identity
from farflung.transport.timeouts import Timeouts

DAY = 86_400.0
TIMEOUTS = Timeouts(10.0)


def play(work: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(limited())


def roots(folder: Path) -> list[bytes]:
    """The fingerprints of the authorities that a folder trusts."""
    return [fingerprint(one) for one in certificates_from_pem((folder / AUTHORITY_FILE).read_bytes())]


async def linked(dialler: Identity, listener: Identity, context: ssl.SSLContext | None = None) -> None:
    """Link one member with another one, each by what its own folder trusts, or the dialler's `context`."""
    recorder, hello = Recorder(), Hello(listener.id, "worker", "data")
    door = await listen("127.0.0.1:0", listener.server_context(False), hello, recorder.admit, TIMEOUTS)
    try:
        own, peer = Hello(dialler.id, "worker", "data"), Peer(listener.id, "worker")
        context = context or dialler.client_context()
        link = await dial(door.address, context, own, peer, Recorder(), TIMEOUTS)
        await link.close("linked")
        assert [one.peer.id for one in recorder.links] == [dialler.id]
    finally:
        await door.close("seen")


def test_members_of_before_and_after_link_with_each_other_and_with_the_broker(tmp_path: Path) -> None:
    hub = tmp_path / "hub"

    async def scene() -> None:
        async with broker(hub) as service:
            before = await identity(service, hub, "before", "worker")
            late = await identity(service, hub, "late", "worker")
            unused = await asyncio.to_thread(create_token, hub, "worker")
        (old,) = roots(hub)
        new = rotate(hub, IN_FOLDER, time.time()).fingerprint
        async with broker(hub) as service:
            assert roots(hub) == [new, old]
            before, late = (replace(one, broker=service.address) for one in (before, late))
            after = await identity(service, hub, "after", "worker")
            assert roots(after.folder) == [new, old]
            renewed = await renew(before)
            assert roots(renewed.folder) == [new, old] and roots(late.folder) == [old]
            by_token = (await enrol(service.address, unused, tmp_path / "token", "worker", "token")).identity
            everyone = (after, renewed, late, by_token)
            for one in everyone:
                member = await Member.dial(service, one)
                await member.link.close("seen")
                for other in everyone:
                    if one != other:
                        await linked(one, other)

    play(scene())


def test_a_member_that_was_off_while_the_key_was_replaced_comes_back(tmp_path: Path) -> None:
    hub = tmp_path / "hub"

    async def scene() -> None:
        own = joined_earlier(hub, tmp_path / "a", days_ago=6.0)
        rotate(hub, IN_FOLDER, time.time() - 3 * DAY)
        async with broker(hub) as service:
            back = await renew_ended(replace(own, broker=service.address))
            assert roots(back.folder) == roots(hub) and len(roots(hub)) == 2
            worker = await PretendedWorker.join(service, hub, "other")
            await worker.hear(Registered)
            await linked(back, await identity(service, hub, "other", "worker"))

    play(scene())


def test_once_the_overlap_has_ended_the_old_key_counts_no_more(tmp_path: Path) -> None:
    hub = tmp_path / "hub"

    async def scene() -> None:
        own = joined_earlier(hub, tmp_path / "a", days_ago=10.0, lifetime_seconds=90 * DAY)
        assert not own.has_ended
        (old,) = roots(hub)
        new = rotate(hub, IN_FOLDER, time.time() - 9 * DAY).fingerprint
        assert roots(hub) == [new, old]
        async with broker(hub) as service:
            assert roots(hub) == [new]
            with pytest.raises(ConnectionFailed):
                await ask_status(replace(own, broker=service.address))
            after = await identity(service, hub, "after", "worker")
            assert roots(after.folder) == [new]
            with pytest.raises(ConnectionFailed):
                await linked(own, after)
            with pytest.raises(ConnectionFailed):
                await linked(after, own)

    play(scene())


def test_who_renews_after_the_overlap_trusts_the_new_key_alone(tmp_path: Path) -> None:
    hub = tmp_path / "hub"

    async def scene() -> None:
        async with broker(hub) as service:
            await identity(service, hub, "a", "worker")
        (old,) = roots(hub)
        new = rotate(hub, IN_FOLDER, time.time(), overlap_seconds=DAY).fingerprint
        async with broker(hub) as service:
            own = await renew(replace(Identity.load(tmp_path / "worker-a"), broker=service.address))
        assert roots(own.folder) == [new, old]
        with Store(hub) as store:  # as of later: the broker of the day after next
            authority = Authority.open(hub, store, lambda: time.time() + 1.5 * DAY)
            answer = authority.renew("a", "worker", own.renewal_request())
            assert len(certificates_from_pem(answer)) == 1  # nothing of the old key is shown any more
            own.renewed(answer, authority.new_roots)
        assert roots(own.folder) == [new]
        assert Identity.load(own.folder).id == "a"

    play(scene())


def test_a_running_member_trusts_the_new_key_from_its_renewal_on(tmp_path: Path) -> None:
    hub = tmp_path / "hub"

    async def scene() -> None:
        own = joined_earlier(hub, tmp_path / "a", days_ago=4.0, lifetime_seconds=90 * DAY)
        context = own.client_context()  # which a process keeps for as long as it runs
        rotate(hub, IN_FOLDER, time.time() - 2 * DAY, overlap_seconds=DAY)
        async with broker(hub) as service:  # after the overlap: no member shows the old key
            after = await identity(service, hub, "after", "worker")
        with pytest.raises(ConnectionFailed):
            await linked(own, after, context)
        with Store(hub) as store:
            then = Authority.open(hub, store, lambda: time.time() - 1.5 * DAY, lifetime_seconds=90 * DAY)
            fresh = own.renewed(then.renew("a", "worker", own.renewal_request()), then.new_roots)
        fresh.present_in(context)
        await linked(fresh, after, context)

    play(scene())


def test_without_an_overlap_all_must_join_again(tmp_path: Path) -> None:
    hub = tmp_path / "hub"

    async def scene() -> None:
        async with broker(hub) as service:
            own = await identity(service, hub, "a", "worker")
        new = rotate(hub, IN_FOLDER, time.time(), overlap_seconds=0.0).fingerprint
        async with broker(hub) as service:
            assert roots(hub) == [new]
            with pytest.raises(ConnectionFailed):
                await ask_status(replace(own, broker=service.address))
            token = await asyncio.to_thread(create_token, hub, "worker")
            again = (await enrol(service.address, token, own.folder, "worker", "a")).identity
            assert roots(again.folder) == [new]
            await ask_status(again)

    play(scene())


def test_a_key_is_not_replaced_while_the_broker_runs_or_an_overlap_lasts(tmp_path: Path) -> None:
    now = time.time()
    with Store(tmp_path) as store:
        first = fingerprint(Authority.open(tmp_path, store).certificate)
        with pytest.raises(StoreOwned, match="another broker"):
            rotate(tmp_path, IN_FOLDER, now)
    assert roots(tmp_path) == [first]
    second = rotate(tmp_path, IN_FOLDER, now).fingerprint
    with pytest.raises(IdentityError, match=r"was replaced before, and members have until .* UTC to renew"):
        rotate(tmp_path, IN_FOLDER, now + 7 * DAY)
    assert roots(tmp_path) == [second, first]
    third = rotate(tmp_path, IN_FOLDER, now + 9 * DAY).fingerprint
    assert roots(tmp_path) == [third, second]


def test_a_new_key_has_the_passphrase_of_the_old_one(tmp_path: Path) -> None:
    words = KeySource(passphrase="correct horse")
    with Store(tmp_path) as store:
        Authority.open(tmp_path, store)
    change_passphrase(tmp_path, IN_FOLDER, "correct horse")
    before = (tmp_path / AUTHORITY_KEY_FILE).read_bytes()
    with pytest.raises(IdentityError, match="does not open"):
        rotate(tmp_path, KeySource(passphrase="wrong horse"), time.time())
    assert (tmp_path / AUTHORITY_KEY_FILE).read_bytes() == before and len(roots(tmp_path)) == 1
    new = rotate(tmp_path, words, time.time()).fingerprint
    assert b"ENCRYPTED" in (tmp_path / AUTHORITY_KEY_FILE).read_bytes()
    with Store(tmp_path) as store:
        assert fingerprint(Authority.open(tmp_path, store, source=words).certificate) == new


@pytest.mark.parametrize("stops_at", [0, 1, 2])
def test_a_broker_starts_after_a_kill_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_at: int
) -> None:
    with Store(tmp_path) as store:
        first = fingerprint(Authority.open(tmp_path, store).certificate)
    written: list[Path] = []

    def write(path: Path, data: bytes, mode: int = 0o644) -> None:
        if len(written) == stops_at:
            raise KeyboardInterrupt
        written.append(path)
        path.write_bytes(data)

    def take(self: KeySource, folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(rotation, "write_atomically", write)
        patched.setattr(KeySource, "take_next", take)
        rotate(tmp_path, IN_FOLDER, time.time())
    for _ in range(2):
        with Store(tmp_path) as store:
            authority = Authority.open(tmp_path, store)
            assert (fingerprint(authority.certificate) == first) == (stops_at < 2)
            authority.identity()
    if stops_at < 2:
        again = rotate(tmp_path, IN_FOLDER, time.time()).fingerprint
        assert roots(tmp_path) == [again, first]


def test_a_disk_that_cannot_be_written_is_one_line_and_the_old_key_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path) as store:
        first = fingerprint(Authority.open(tmp_path, store).certificate)

    def full(path: Path, data: bytes, mode: int = 0o644) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(rotation, "write_atomically", full)
        with pytest.raises(IdentityError, match=r"cannot be written \(No space left on device\), so the old"):
            rotate(tmp_path, IN_FOLDER, time.time())
    with Store(tmp_path) as store:
        assert fingerprint(Authority.open(tmp_path, store).certificate) == first


def test_an_overlap_goes_on_in_a_restored_broker(tmp_path: Path) -> None:
    with Store(tmp_path / "hub") as store:
        Authority.open(tmp_path / "hub", store)
    rotate(tmp_path / "hub", IN_FOLDER, time.time())
    back_up(tmp_path / "hub", tmp_path / "fleet.backup")
    restore(tmp_path / "fleet.backup", tmp_path / "new")
    assert Trust.read(tmp_path / "new") == Trust.read(tmp_path / "hub")
    assert Trust.read(tmp_path / "new").overlaps(time.time())
    assert (tmp_path / "new" / CROSSED_FILE).exists()

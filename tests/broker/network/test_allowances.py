"""What each holder may ask of the broker: pure, and of a real broker over real links."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.scenario import training
from tests.support.broker_fleet import BROKER, TIMEOUTS, Member, PretendedWorker, broker, identity

from farflung.broker.network import allowances
from farflung.broker.network.allowances import (
    LEAST_SECONDS,
    OF_ROLE,
    Allowances,
    Bucket,
    Rate,
    kind_of,
)
from farflung.broker.service import BrokerService
from farflung.errors import ConnectionFailed, ProtocolError
from farflung.protocol import messages
from farflung.protocol.messages import Ask, Denied, Registered, Renew, Status, Submit
from farflung.protocol.probing import AskTopology, FleetTopology
from farflung.transport.endpoint import dial
from farflung.transport.handler import HEAD_BYTES
from farflung.transport.security.peer import Peer
from farflung.transport.wire.frames import Control, Hello, encode

EYE, ANA = Peer("eye", "viewer"), Peer("ana", "submitter")
MB = 2**20


def test_a_message_is_limited_by_its_senders_role() -> None:
    counted = Allowances()
    counted.begin(1, EYE, 8192, 0.0)
    counted.end(1)
    with pytest.raises(ProtocolError, match="a viewer's message may have 8,192 bytes, found one of 8,193"):
        counted.begin(1, EYE, 8193, 0.0)
    counted.begin(1, ANA, 60 * MB, 0.0)


def test_unfinished_messages_of_all_links_of_a_holder_count_together() -> None:
    counted = Allowances()
    counted.begin(1, ANA, 40 * MB, 0.0)
    counted.begin(2, Peer("bob", "submitter"), 40 * MB, 0.0)
    with pytest.raises(ProtocolError, match="ana has 41,943,040 bytes of unfinished messages"):
        counted.begin(3, ANA, 40 * MB, 0.0)
    counted.end(1)
    counted.begin(3, ANA, 40 * MB, 0.0)


def test_a_message_has_to_be_complete_after_a_while() -> None:
    counted = Allowances()
    counted.begin(1, EYE, 8000, 0.0)
    counted.begin(2, ANA, 60 * MB, 0.0)
    assert counted.overdue(LEAST_SECONDS) == []
    assert counted.overdue(LEAST_SECONDS + 1) == [1]
    counted.end(1)
    assert counted.overdue(LEAST_SECONDS + 60 * MB / 1e5 - 1) == []
    assert counted.overdue(LEAST_SECONDS + 60 * MB / 1e5 + 1) == [2]


def test_links_are_limited_by_role() -> None:
    counted, most = Allowances(), OF_ROLE["viewer"].links
    counted.admit(EYE, most - 1)
    with pytest.raises(ProtocolError, match=f"eye has {most} connections to this broker already"):
        counted.admit(EYE, most)


def test_each_kind_of_message_has_a_rate_and_a_size() -> None:
    counted, renew = Allowances(), Renew(b"pem")
    for _ in range(10):
        counted.take(EYE, renew, 100, 0.0)
    with pytest.raises(ProtocolError, match=r"viewer eye sends too many messages \(Renew\)"):
        counted.take(EYE, renew, 100, 1.0)
    counted.take(EYE, Ask(), 10, 1.0)
    counted.take(ANA, renew, 100, 1.0)
    counted.take(EYE, renew, 100, 11.0)
    submit = Submit("gpt", b"", training(), 1)
    counted.take(ANA, submit, 50 * MB, 0.0)
    with pytest.raises(ProtocolError, match="a Renew may have 1,048,576 bytes, found one of 2,097,152"):
        counted.take(ANA, renew, 2 * MB, 0.0)


def test_buckets_that_are_full_again_are_forgotten() -> None:
    counted = Allowances()
    for number in range(100):
        counted.take(Peer(f"v-{number}", "viewer"), Ask(), 10, 0.0)
    counted.overdue(1000.0)
    assert not counted._buckets


@given(
    st.floats(0.1, 100),
    st.integers(1, 50),
    st.lists(st.floats(0, 10), max_size=100).map(sorted),
)
def test_a_bucket_lets_through_no_more_than_its_rate_and_its_burst(
    per_second: float, burst: int, moments: list[float]
) -> None:
    bucket, taken = Bucket(Rate(per_second, burst), 0.0), list[float]()
    for now in moments:
        if bucket.take(now):
            taken.append(now)
    for first, begin in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + per_second * (taken[last] - begin) + 1e-6


# A real broker


def run(work: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(90):
            await work

    asyncio.run(limited())


async def viewer(service: BrokerService, folder: Path) -> Member:
    member: Member = await Member.dial(service, await identity(service, folder, "eye", "viewer"))
    return member


async def answers(service: BrokerService, folder: Path) -> None:
    """The broker still works for others."""
    worker = await PretendedWorker.join(service, folder, "w-1")
    await worker.hear(Registered)
    await worker.link.close("seen")


def piece_of(total: int, size: int, kind: str = "Submit") -> tuple[bytes, bytes]:
    """The beginning of a control message, as it stands on the wire."""
    return encode(Control(0, total), size), msgspec.msgpack.encode({"type": kind}).ljust(size, b"\0")


def test_a_viewers_large_message_is_refused_when_it_begins(tmp_path: Path) -> None:
    """Unfinished messages of 64 MiB took a broker from 56 MB to 1 GB."""

    async def work() -> None:
        async with broker(tmp_path / "hub") as service:
            eye = await viewer(service, tmp_path / "hub")
            eye.link._transport.write(*piece_of(64 * MB, 1000))
            assert "a viewer's message may have 8,192 bytes" in await eye.lost()
            await answers(service, tmp_path / "hub")

    run(work())


@pytest.mark.parametrize(("kind", "most"), [("Renew", "1,048,576"), ("Links", "4,194,304")])
def test_a_message_too_large_for_its_kind_is_refused_when_it_begins(
    kind: str, most: str, tmp_path: Path
) -> None:
    """A submitter could send 64 MB of any kind, which the broker received and decoded."""

    async def work() -> None:
        async with broker(tmp_path / "hub") as service:
            ana = await Member.dial(service, await identity(service, tmp_path / "hub", "ana", "submitter"))
            ana.link._transport.write(*piece_of(64 * MB, 1000, kind))
            assert f"a {kind} may have {most} bytes, found one of 67,108,864" in await ana.lost()
            await answers(service, tmp_path / "hub")

    run(work())


def test_a_message_begins_with_its_kind() -> None:
    for message in (Submit("gpt", b"", training(), 1), Renew(b"pem"), Ask(), messages.Links("job-1", [])):
        assert kind_of(messages.encode(message)[:HEAD_BYTES]) == type(message).__name__
    many = msgspec.msgpack.encode({"type": "Submit"} | {f"f{number}": 0 for number in range(20)})
    assert kind_of(many[:HEAD_BYTES]) == "Submit"
    counted, large = Allowances(), msgspec.msgpack.encode({"graph": b"", "type": "Submit"})
    counted.check_kind(large, MB)
    with pytest.raises(ProtocolError, match="a message without a kind may have 1,048,576 bytes"):
        counted.check_kind(large, MB + 1)


@given(st.binary(max_size=HEAD_BYTES))
def test_any_bytes_have_a_kind_or_none(head: bytes) -> None:
    assert len(kind_of(head)) < 32


def test_a_submitter_may_begin_one_large_message_and_must_finish_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with broker(tmp_path / "hub") as service:
            own = await identity(service, tmp_path / "hub", "ana", "submitter")
            first, second = [await Member.dial(service, own) for _ in range(2)]
            first.link._transport.write(*piece_of(40 * MB, 1000))
            await until(lambda: len(service._connections.allowances._unfinished) == 1)
            second.link._transport.write(*piece_of(40 * MB, 1000))
            assert "ana has 41,943,040 bytes of unfinished messages" in await second.lost()
            monkeypatch.setattr(Allowances, "overdue", lambda counted, now: list(counted._unfinished))
            assert "was not complete in time" in await first.lost()
            assert not service._connections.allowances._unfinished
            await answers(service, tmp_path / "hub")

    run(work())


def test_a_holder_has_so_many_links(tmp_path: Path) -> None:
    """A viewer took all descriptors of a broker by 1,010 of them."""

    async def work() -> None:
        async with broker(tmp_path / "hub") as service:
            own = await identity(service, tmp_path / "hub", "eye", "viewer")
            links = [await Member.dial(service, own) for _ in range(OF_ROLE["viewer"].links)]
            with pytest.raises(ConnectionFailed, match="eye has 16 connections to this broker already"):
                await dial(
                    service.address,
                    own.client_context(),
                    Hello("eye", "viewer", "control"),
                    BROKER,
                    links[0],
                    TIMEOUTS,
                )
            await links[0].link.close("seen")
            await until(lambda: len(service._connections._by_connection) < len(links))
            await Member.dial(service, own)
            await answers(service, tmp_path / "hub")

    run(work())


def test_certificates_are_renewed_only_so_often(tmp_path: Path) -> None:
    """800 times a second took all of a broker's processor."""

    async def work() -> None:
        async with broker(tmp_path / "hub") as service:
            own = await identity(service, tmp_path / "hub", "eye", "viewer")
            eye = await Member.dial(service, own)
            request = Renew(own.renewal_request())
            for _ in range(20):
                eye.say(request)
            assert "viewer eye sends too many messages (Renew): 0.1 a second are allowed" in await eye.lost()

    run(work())


def test_surveys_are_requested_only_so_often(tmp_path: Path) -> None:
    async def work() -> None:
        async with broker(tmp_path / "hub") as service:
            ana = await Member.dial(service, await identity(service, tmp_path / "hub", "ana", "submitter"))
            for _ in range(3):
                ana.say(AskTopology(True))
                assert "a survey needs two idle workers" in (await ana.hear(Denied)).reason
            ana.say(AskTopology(True))
            assert "wait a minute" in (await ana.hear(Denied)).reason
            ana.say(AskTopology(False))
            await ana.hear(FleetTopology)

    run(work())


def test_a_holder_that_does_not_read_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        limits = allowances.RoleLimits(8192, 16, 20_000)
        monkeypatch.setitem(OF_ROLE, "viewer", limits)
        async with broker(tmp_path / "hub") as service:
            eye = await viewer(service, tmp_path / "hub")
            eye.say(Ask())
            size = len(messages.encode(await eye.hear(Status)))
            eye.link._transport.pause_reading()
            for _ in range(20_000 // size + 3):
                eye.say(Ask())
            await until(lambda: not service._connections._by_connection)
            eye.link._transport.resume_reading()
            assert "bytes unread" in await eye.lost()
            await answers(service, tmp_path / "hub")

    run(work())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)

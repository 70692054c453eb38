"""Links whose data comes over several connections."""

from __future__ import annotations

import asyncio
import math
import random
from pathlib import Path

import pytest
from tests.support.links import Pair, RawPeer, Recorder, paired, run, slice_header, usual_but, value_header

from farflung.transport.endpoint import Hello, LinkOptions
from farflung.transport.link.outbox import WINDOW_BYTES
from farflung.transport.wire.frames import Chunk, Close, Control, Frame, Open, Ping, Stripe

MEBIBYTE = 2**20
FOUR = LinkOptions(connections=4)


async def standing(pair: Pair, count: int = 4) -> None:
    """Wait until both ends use so many connections."""
    async with asyncio.timeout(60):
        while (pair.a.connections, pair.b.connections) != (count, count):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_many_messages_arrive_unchanged_and_once_over_four_connections(tmp_path: Path) -> None:
    source = random.Random(3)
    sizes = [0, 1, MEBIBYTE, 5 * MEBIBYTE + 1] + [source.randrange(200_000) for _ in range(150)]
    payloads = {f"{number}": source.randbytes(size) for number, size in enumerate(sizes)}

    async def test() -> None:
        async with paired(tmp_path, options=FOUR) as pair:
            await standing(pair)
            for link in (pair.a, pair.b):
                for name, payload in payloads.items():
                    link.post(slice_header(len(payload), name), memoryview(payload))
            for heard in (pair.heard_by_a, pair.heard_by_b):
                await heard.until(lambda heard=heard: len(heard.messages) >= len(payloads))
                assert {header.name: bytes(buffer) for header, buffer in heard.messages} == payloads
                assert len(heard.messages) == len(payloads)
            assert pair.a.status.connections == pair.b.status.connections == 4
            assert pair.b.bytes_received <= pair.a.bytes_sent

    run(test())


def test_stripes_may_open_while_data_is_in_flight(tmp_path: Path) -> None:
    payload = random.Random(4).randbytes(8 * MEBIBYTE)

    async def test() -> None:
        async with paired(tmp_path, options=FOUR) as pair:
            for _ in range(6):
                pair.a.post(slice_header(len(payload)), memoryview(payload))
                pair.b.post(slice_header(len(payload)), memoryview(payload))
            for heard in (pair.heard_by_a, pair.heard_by_b):
                await heard.until(lambda heard=heard: len(heard.messages) == 6)
                assert all(bytes(buffer) == payload for _, buffer in heard.messages)
            await standing(pair)

    run(test())


def test_data_never_overtakes_the_control_messages_before_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, options=FOUR) as pair:
            await standing(pair)
            heard = pair.heard_by_b
            for number in range(100):
                pair.a.post(slice_header(3 * MEBIBYTE // 10), memoryview(bytes(3 * MEBIBYTE // 10)))
                await asyncio.sleep(0)
                pair.a.send_control(f"{number}".encode() * 10_000)
                pair.a.post(value_header(10, True, number), memoryview(bytes(10)))
            await heard.until(lambda: len(heard.messages) == 200)
            controls = 0
            values = iter(range(1, 101))
            for what in heard.order:
                controls += what == "control"
                if what == "value":
                    assert controls >= next(values)

    run(test())


def test_buffers_come_back_when_the_last_connection_is_done_with_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, options=FOUR) as pair:
            await standing(pair)
            ends: list[int] = []
            size = 3 * MEBIBYTE
            for number in range(10):
                header = value_header(size, False, number)
                pair.a.post(header, memoryview(bytes(size)), lambda number=number: ends.append(number))
            await pair.heard_by_b.until(lambda: len(pair.heard_by_b.messages) == 10)
            assert sorted(ends) == list(range(10))

    run(test())


def test_a_withdrawn_message_leaves_nothing_behind(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, options=FOUR) as pair:
            await standing(pair)
            heard = pair.heard_by_b
            for _ in range(5):
                before = len(heard.opened)
                header = slice_header(4 * WINDOW_BYTES)
                pair.a.post(header, memoryview(bytes(4 * WINDOW_BYTES)))
                await heard.until(lambda before=before: len(heard.opened) > before)
                pair.a.withdraw(lambda queued, header=header: queued is header)
            await pair.assert_unharmed()
            assert [header.bytes for header, _ in heard.messages] == [3]
            async with asyncio.timeout(60):  # that message may have come over another connection, and sooner
                while pair.b.unfinished:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    run(test())


def test_the_end_of_a_link_ends_all_its_connections(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, options=FOUR) as pair:
            await standing(pair)
            await pair.b.close("done for today")
            await pair.heard_by_a.until(lambda: bool(pair.heard_by_a.reasons))
            assert pair.heard_by_a.reasons == ["worker b closed the link: done for today"]

    run(test())


def test_the_side_that_was_dialled_may_ask_for_connections_for_what_it_sends(tmp_path: Path) -> None:
    payload = random.Random(5).randbytes(9 * MEBIBYTE)

    async def test() -> None:
        async with paired(tmp_path, options=LinkOptions(connections=1), listening=FOUR) as pair:
            async with asyncio.timeout(60):
                while pair.b.connections < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            for link in (pair.a, pair.b):
                link.post(slice_header(len(payload)), memoryview(payload))
            for heard in (pair.heard_by_a, pair.heard_by_b):
                await heard.until(lambda heard=heard: bool(heard.messages))
                assert bytes(heard.messages[0][1]) == payload
            assert pair.a.connections == 1

    run(test())


def test_links_between_others_do_not_share_connections(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, options=FOUR) as pair:
            await standing(pair)
            link, _ = await pair.another()
            assert link.connections == 1
            await link.send(slice_header(5), memoryview(b"alone"))
            await pair.assert_unharmed()
            await link.close("seen")

    run(test())


async def _greeted(pair: Pair, id: str) -> tuple[RawPeer, bytes]:
    """A raw peer that has said hello, and the token that it was told."""
    peer = await RawPeer.connect(pair.listener.address, pair.authority.holder(id, "worker"))
    peer.say(Hello(id, "worker", "data"))
    await peer.read(lambda: bool(peer.frames))
    hello, _ = peer.frames[0]
    assert isinstance(hello, Hello) and hello.stripe is not None
    return peer, hello.stripe


async def _further(pair: Pair, id: str, token: bytes) -> RawPeer:
    """A further connection of a raw peer's link."""
    stripe = await RawPeer.connect(pair.listener.address, pair.authority.holder(id, "worker"))
    stripe.say(Stripe(token))
    return stripe


def test_a_token_admits_its_holder_only(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            owner, token = await _greeted(pair, "d")
            assert pair.a.token is not None and token != pair.a.token
            for id, shown in (("e", token), ("d", bytes(16)), ("d", pair.a.token)):
                thief = await _further(pair, id, shown)
                assert "expected the token of an open link" in await thief.last_words()
                await thief.close()
            owner.say(Close("bye"))
            await owner.close()
            await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.reasons))
            late = await _further(pair, "d", token)
            assert "expected the token of an open link" in await late.last_words()
            await late.close()
            await pair.assert_unharmed()

    run(test())


def test_a_link_takes_fifteen_further_connections_and_no_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            owner, token = await _greeted(pair, "d")
            stripes = [await _further(pair, "d", token) for _ in range(15)]
            for stripe in stripes:
                await stripe.read(lambda stripe=stripe: bool(stripe.frames))
                assert stripe.frames[0][0] == Stripe(token)
            one_more = await _further(pair, "d", token)
            assert "accepts more connections" in await one_more.last_words()
            assert pair.heard_by_b.links[-1].reason is None
            for peer in (one_more, *stripes, owner):
                await peer.close()
            await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.reasons))

    run(test())


TEN = slice_header(10)
MISDEEDS: list[tuple[list[tuple[Frame, bytes]], list[tuple[Frame, bytes]], str]] = [
    ([(Open(0, TEN), b"abc")], [(Chunk(0, 2), b"x")], "found 1 from 2: a replay?"),
    ([(Open(0, TEN), b"abc")], [(Chunk(0, 9), b"xy")], "expected 10 bytes in all"),
    ([], [(Control(0, 1), b"x")], "expected only data on a further connection, found a control frame"),
    ([], [(Ping(1.0), b"")], "expected only data on a further connection, found a ping frame"),
    ([(Chunk(7, 0), b"x")], [(Chunk(7, 0), b"x")], "every connection is already past it"),
    ([(Open(1, TEN), b"x")], [(Open(1, TEN), b"x")], "expected stream 2 to be opened, found 1: a replay?"),
    ([(Open(512, TEN), b"x")], [(Open(0, TEN), b"x")], "at most 512 unfinished messages"),
    ([(Open(2**53, TEN), b"x")], [(Open(0, TEN), b"x")], "at most 512 unfinished messages"),
    ([(Open(0, TEN, 1), b"x")], [(Chunk(0, 1), b"x")], "every connection is already past it"),
]


@pytest.mark.parametrize(("first", "second", "reason"), MISDEEDS)
def test_a_peer_that_breaks_the_protocol_over_two_connections_loses_its_link(
    tmp_path: Path, first: list[tuple[Frame, bytes]], second: list[tuple[Frame, bytes]], reason: str
) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            rogue, token = await _greeted(pair, "d")
            stripe = await _further(pair, "d", token)
            await stripe.read(lambda: bool(stripe.frames))
            for frame, payload in first:
                rogue.say(frame, payload)
            await pair.assert_unharmed()
            for frame, payload in second:
                stripe.say(frame, payload)
            assert reason in await rogue.last_words()
            await rogue.close()
            await stripe.close()
            await pair.assert_unharmed()

    run(test())


def test_streams_may_begin_in_any_order(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            peer, token = await _greeted(pair, "d")
            stripe = await _further(pair, "d", token)
            await stripe.read(lambda: bool(stripe.frames))
            stripe.say(Open(511, slice_header(1, "last")), b"z")
            heard, link = pair.heard_by_b, pair.heard_by_b.links[-1]
            await heard.until(lambda: bool(heard.messages))
            assert link.receipt.opened == 512 and set(link.receipt.missing) == set(range(511))
            for stream in reversed(range(511)):
                peer.say(Open(stream, slice_header(1, f"{stream}")), b"y")
            await heard.until(lambda: len(heard.messages) == 512)
            assert link.receipt.missing == ()
            assert len({header.name for header, _ in heard.messages}) == 512
            peer.say(Close("bye"))
            await peer.close()
            await stripe.close()

    run(test())


def test_a_message_with_a_gap_is_not_complete(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, heard_by_b=Recorder()) as pair:
            peer, token = await _greeted(pair, "d")
            stripe = await _further(pair, "d", token)
            await stripe.read(lambda: bool(stripe.frames))
            stripe.say(Chunk(0, 7), b"hij")
            stripe.say(Chunk(0, 5), b"fg")
            peer.say(Open(0, TEN), b"abc")
            await pair.assert_unharmed()
            assert pair.heard_by_b.links[-1].unfinished == [TEN]
            peer.say(Chunk(0, 3), b"de")
            await pair.heard_by_b.until(lambda: (TEN, b"abcdefghij") in pair.heard_by_b.messages)
            peer.say(Close("bye"))
            await peer.close()
            await stripe.close()

    run(test())


def test_the_loss_of_a_further_connection_is_the_loss_of_the_link(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, usual_but(suspect_seconds=math.inf)) as pair:
            peer, token = await _greeted(pair, "d")
            stripe = await _further(pair, "d", token)
            await stripe.read(lambda: bool(stripe.frames))
            await stripe.close()
            assert "the process at the other end may have died" in await peer.last_words()
            await peer.close()
            await pair.assert_unharmed()

    run(test())

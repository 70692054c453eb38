from __future__ import annotations

import asyncio
import math
import random
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.support.links import Pair, RawPeer, Recorder, paired, run, slice_header, usual_but, value_header
from tests.support.processes import eventually

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.transport.endpoint import Hello, LinkOptions, Peer
from farflung.transport.failures import GIVEN_UP
from farflung.transport.link.link import Link
from farflung.transport.link.outbox import WINDOW_BYTES
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import (
    Cancel,
    Chunk,
    Close,
    Control,
    Credit,
    Open,
    Ping,
    Pong,
    Stripe,
    Widen,
    encode,
)

MEBIBYTE = 2**20
NEVER_SUSPECT = usual_but(suspect_seconds=math.inf)
"""However late it is heard that somebody hung up: after a silence the end of a link has other words."""


def test_many_messages_of_random_sizes_arrive_unchanged_in_both_directions(tmp_path: Path) -> None:
    random_source = random.Random(1)
    sizes = [0, 1, 16 * 1024, MEBIBYTE, MEBIBYTE + 1, 3 * MEBIBYTE]
    sizes += [random_source.randrange(1, 2 ** random_source.randrange(1, 21)) for _ in range(60)]
    payloads = {f"{number}": random_source.randbytes(size) for number, size in enumerate(sizes)}

    async def test() -> None:
        async with paired(tmp_path) as pair:
            sends = [
                link.send(slice_header(len(payload), name), memoryview(payload))
                for name, payload in payloads.items()
                for link in (pair.a, pair.b)
            ]
            for number in range(50):
                pair.a.send_control(f"{number}".encode())
            await asyncio.gather(*sends)
            for heard in (pair.heard_by_a, pair.heard_by_b):
                await heard.until(lambda heard=heard: len(heard.messages) == len(payloads))
                assert {header.name: bytes(buffer) for header, buffer in heard.messages} == payloads
            await pair.heard_by_b.until(lambda: len(pair.heard_by_b.controls) == 50)
            assert pair.heard_by_b.controls == [f"{number}".encode() for number in range(50)]
            assert pair.a.messages_sent == len(payloads) + 50
            assert pair.b.messages_received == len(payloads) + 50
            assert pair.b.bytes_received <= pair.a.bytes_sent
            assert sum(sizes) < pair.a.bytes_sent < 1.01 * sum(sizes) + 100 * (len(payloads) + 50) + 1000

    run(test())


def test_a_large_control_message_comes_whole(tmp_path: Path) -> None:
    message = random.Random(2).randbytes(5 * MEBIBYTE + 7)

    async def test() -> None:
        async with paired(tmp_path) as pair:
            pair.a.send_control(message)
            pair.a.send_control(b"")
            await pair.heard_by_b.until(lambda: len(pair.heard_by_b.controls) == 2)
            assert pair.heard_by_b.controls == [message, b""]
            with pytest.raises(ValueError, match="at most"):
                pair.a.send_control(bytes(64 * MEBIBYTE + 1))

    run(test())


def test_urgent_messages_overtake_a_large_tensor(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            heard = pair.heard_by_b
            state = asyncio.ensure_future(pair.a.send(slice_header(32 * MEBIBYTE), _zeros(32 * MEBIBYTE)))
            await heard.until(lambda: bool(heard.opened))
            pair.a.post(value_header(MEBIBYTE, gradient=False), _zeros(MEBIBYTE))
            pair.a.post(value_header(MEBIBYTE, gradient=True), _zeros(MEBIBYTE))
            pair.a.send_control(b"urgent")
            await state
            await heard.until(lambda: len(heard.messages) == 3)
            assert heard.order == ["control", "value", "value", "slice"]
            assert [getattr(header, "gradient", None) for header, _ in heard.messages] == [True, False, None]

    run(test())


def test_equally_urgent_messages_keep_their_order(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            for number in range(20):
                size = random.Random(number).randrange(300_000)
                pair.a.post(value_header(size, gradient=False, microbatch=number), _zeros(size))
            await pair.heard_by_b.until(lambda: len(pair.heard_by_b.messages) == 20)
            assert [header.microbatch for header, _ in pair.heard_by_b.messages] == list(range(20))

    run(test())


def test_a_dropped_message_costs_the_link_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        heard_by_b = Recorder(drop=lambda header: header.bytes == 2 * MEBIBYTE)
        async with paired(tmp_path, heard_by_b=heard_by_b) as pair:
            for _ in range(2 * WINDOW_BYTES // (2 * MEBIBYTE)):
                await pair.a.send(slice_header(2 * MEBIBYTE), _zeros(2 * MEBIBYTE))
            await pair.assert_unharmed()
            assert len(heard_by_b.messages) == 1

    run(test())


def test_a_header_that_the_handler_refuses_ends_the_link_with_its_words(tmp_path: Path) -> None:
    async def test() -> None:
        heard_by_b = Recorder(refuse=lambda header: ProtocolError("value 7 is not in the plan"))
        async with paired(tmp_path, heard_by_b=heard_by_b) as pair:
            with pytest.raises(
                ConnectionFailed, match=r"worker b closed the link: value 7 is not in the plan"
            ):
                while True:
                    await pair.a.send(slice_header(MEBIBYTE), _zeros(MEBIBYTE))
            assert heard_by_b.reasons == ["value 7 is not in the plan"]

    run(test())


def test_a_sender_never_exceeds_its_credit(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            stubborn = await _greeted(pair, "d")
            link = pair.heard_by_b.links[-1]
            size = 4 * WINDOW_BYTES
            send = asyncio.ensure_future(link.send(slice_header(size), _zeros(size)))
            while _payload(stubborn) < WINDOW_BYTES:
                await stubborn.read(lambda: _payload(stubborn) >= WINDOW_BYTES)
            link.send_control(b"still heard")
            await stubborn.read(lambda: any(isinstance(frame, Control) for frame, _ in stubborn.frames))
            assert _payload(stubborn) == WINDOW_BYTES
            stubborn.say(Credit(MEBIBYTE))
            await stubborn.read(lambda: _payload(stubborn) > WINDOW_BYTES)
            assert not send.done()
            stubborn.say(Close("enough\n\x1b[2J"))
            with pytest.raises(ConnectionFailed, match=r"worker d closed the link: enough\?\?\[2J$"):
                await send
            await stubborn.close()

    run(test())


def test_a_cancelled_send_is_withdrawn_and_the_link_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            heard = pair.heard_by_b
            send = asyncio.ensure_future(
                pair.a.send(slice_header(8 * WINDOW_BYTES), _zeros(8 * WINDOW_BYTES))
            )
            await heard.until(lambda: bool(heard.opened))
            send.cancel()
            with pytest.raises(asyncio.CancelledError):
                await send
            ends: list[int] = []
            pair.a.post(slice_header(4, "later"), memoryview(b"past"), lambda: ends.append(1))
            await heard.until(lambda: len(heard.messages) == 1)
            assert bytes(heard.messages[0][1]) == b"past"
            assert ends == [1]

    run(test())


def test_withdrawn_messages_never_arrive_and_their_buffers_come_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            ends: list[int] = []
            for number in range(3):
                header = value_header(10, gradient=False, microbatch=number)
                pair.a.post(header, _zeros(10), lambda number=number: ends.append(number))
            pair.a.withdraw(lambda header: header.microbatch != 1)
            assert ends == [0, 2]
            await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.messages))
            assert [header.microbatch for header, _ in pair.heard_by_b.messages] == [1]
            assert ends == [0, 2, 1]

    run(test())


def test_a_link_that_is_over_drops_what_it_is_given(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            ends: list[str] = []
            pair.a.post(
                slice_header(8 * WINDOW_BYTES), _zeros(8 * WINDOW_BYTES), lambda: ends.append("begun")
            )
            await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.opened))
            await asyncio.gather(pair.a.close("done for today"), pair.a.close("again"))
            assert ends == ["begun"]
            pair.a.post(slice_header(1), _zeros(1), lambda: ends.append("late"))
            pair.a.send_control(b"late")
            with pytest.raises(ConnectionFailed, match="worker b is over: done for today"):
                await pair.a.send(slice_header(1), _zeros(1))
            assert ends == ["begun", "late"]
            assert pair.heard_by_a.reasons == ["done for today"]
            await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.reasons))
            assert pair.heard_by_b.reasons == ["worker a closed the link: done for today"]

    run(test())


def test_both_ends_may_close_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, Timeouts(600)) as pair:
            async with asyncio.timeout(60):  # half of what a goodbye that nobody answers may take
                await asyncio.gather(pair.a.close("one"), pair.b.close("other"))
            assert pair.a.reason is not None and pair.b.reason is not None

    run(test())


def test_a_ping_measures_the_round_trip_and_credit_the_rate(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, usual_but(heartbeat_seconds=0.1)) as pair:
            while pair.a.round_trip_seconds is None or pair.a.bytes_per_second is None:
                await pair.a.send(slice_header(4 * MEBIBYTE), _zeros(4 * MEBIBYTE))
            assert 0 <= pair.a.round_trip_seconds < 10
            assert pair.a.bytes_per_second > 1000

    run(test())


def test_a_links_status_tells_what_paces_it_and_how_it_does(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, usual_but(heartbeat_seconds=0.5)) as pair:
            assert pair.a.status.round_trip_ms is None and pair.a.status.rate_mbps is None
            while pair.a.round_trip_seconds is None or pair.a.bytes_per_second is None:
                await pair.a.send(slice_header(4 * MEBIBYTE), _zeros(4 * MEBIBYTE))
            status = pair.a.status
            assert (status.peer, status.remote) == ("b", pair.a.remote)
            assert status.round_trip_ms == pair.a.round_trip_seconds * 1e3
            assert status.rate_mbps == pair.a.bytes_per_second * 8 / 1e6
            assert status.bytes_sent == pair.a.bytes_sent > 4 * MEBIBYTE
            assert status.bytes_received == pair.a.bytes_received > 0

    run(test())


@pytest.mark.skipif(sys.platform != "linux", reason="congestion control is chosen per socket on Linux only")
@pytest.mark.parametrize("asked", ["reno", "cubic", "none-such"])
def test_both_ends_take_the_congestion_control_that_is_asked_for(tmp_path: Path, asked: str) -> None:
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    own = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()

    async def test() -> None:
        async with paired(tmp_path, options=LinkOptions(congestion_control=asked)) as pair:
            expected = asked if asked in known else own
            assert pair.a.congestion_control == pair.b.congestion_control == expected

    run(test())


def _garbage(peer: RawPeer) -> None:
    peer.write(b"POST / HTTP/1.1\r\n\r\n")


def _other_version(peer: RawPeer) -> None:
    frame = bytearray(encode(Ping(1.0)))
    frame[4] = 2
    peer.write(bytes(frame))


def _oversized(peer: RawPeer) -> None:
    peer.write(encode(Control(0, 2**24), 2**20 + 1))


def _replayed_open(peer: RawPeer) -> None:
    for _ in range(2):
        peer.say(Open(0, slice_header(3)), b"abc")


def _replayed_chunk(peer: RawPeer) -> None:
    peer.say(Open(0, slice_header(9)), b"abc")
    for _ in range(2):
        peer.say(Chunk(0, 3), b"def")


def _too_long(peer: RawPeer) -> None:
    peer.say(Open(0, slice_header(4)), b"abc")
    peer.say(Chunk(0, 3), b"def")


def _cut_short(peer: RawPeer) -> None:
    peer.say(Open(0, slice_header(9)), b"abc")
    peer.say(Cancel(0, 2))


def _many_streams(peer: RawPeer) -> None:
    for stream in range(513):
        peer.say(Open(stream, slice_header(4)), b"abc")


MISDEEDS: list[tuple[Callable[[RawPeer], None], str]] = [
    (_garbage, "expected a farflung frame"),
    (_other_version, "the peer uses farflung protocol 2, this side 1"),
    (_oversized, "payload of at most 1048576 bytes in a control frame, found 1048577"),
    (_replayed_open, "expected stream 1 to be opened, found 0"),
    (_replayed_chunk, "expected bytes from 6 of stream 0, found 3 from 3"),
    (_too_long, "expected 4 bytes in all"),
    (_many_streams, "at most 512 unfinished messages"),
    (_cut_short, "expected a stream cancelled before its end, found 2 bytes of it"),
    (lambda peer: peer.say(Stripe(bytes(16))), "expected the token of an open link"),
    (lambda peer: peer.say(Widen(4)), "expected no widen frame on an open link"),
    (lambda peer: peer.say(Chunk(5, 0), b"x"), "expected a chunk of an open stream, found one of stream 5"),
    (lambda peer: peer.say(Open(0, slice_header(4)), b""), "expected some of 4 bytes"),
    (lambda peer: peer.say(Control(7, 9), b"xx"), "expected a control message from byte 0, found 7"),
    (lambda peer: peer.say(Control(0, 1), b"xx"), "expected 1 bytes in all"),
    (lambda peer: peer.say(Credit(1)), "expected credit for at most 0 bytes, found 1"),
    (lambda peer: peer.say(Cancel(3, 0)), "expected an open stream to be cancelled, found 3"),
    (lambda peer: peer.say(Hello("d", "worker", "data")), "expected no hello frame on an open link"),
]


@pytest.mark.parametrize(("misdeed", "reason"), MISDEEDS, ids=[reason for _, reason in MISDEEDS])
def test_a_peer_that_breaks_the_protocol_loses_its_link_and_no_other(
    tmp_path: Path, misdeed: Callable[[RawPeer], None], reason: str
) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            rogue = await _greeted(pair, "d")
            misdeed(rogue)
            assert reason in await rogue.last_words()
            await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.reasons))
            assert reason in pair.heard_by_b.reasons[0]
            await rogue.close()
            await pair.assert_unharmed()

    run(test())


@pytest.mark.parametrize(
    ("offence", "reason"),
    [
        (lambda rogue, link: _garbage(rogue), "expected a farflung frame"),
        (lambda rogue, link: link.cut_off("you were too slow"), "you were too slow"),
    ],
    ids=["it broke the protocol", "its link was cut off"],
)
def test_what_a_peer_writes_after_its_offence_is_not_read(
    tmp_path: Path, offence: Callable[[RawPeer, Link], None], reason: str
) -> None:
    """To decrypt it would cost the process a core until the connection is cut."""

    async def test() -> None:
        async with paired(tmp_path) as pair:
            rogue = await _greeted(pair, "d")
            link = pair.heard_by_b.links[-1]
            offence(rogue, link)
            assert reason in await rogue.last_words()
            (heard,) = pair.heard_by_b.reasons
            assert reason in heard
            before = link.bytes_received
            rogue.write(bytes(32 * MEBIBYTE))
            with suppress(ConnectionError):
                await rogue.read(lambda: False)  # until it is cut off
            assert link.bytes_received - before < MEBIBYTE
            await pair.assert_unharmed()

    run(test())


def test_a_peer_cut_off_in_the_middle_of_a_frame_is_a_lost_peer(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, NEVER_SUSPECT) as pair:
            rogue = await _greeted(pair, "d")
            rogue.write(encode(Open(0, slice_header(100)), 50) + b"only this")
            await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.opened))
            await rogue.close()
            await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.reasons))
            assert "the process at the other end may have died" in pair.heard_by_b.reasons[0]
            assert not pair.heard_by_b.messages
            await pair.assert_unharmed()

    run(test())


def test_a_silent_peer_is_given_up_within_the_lease(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, usual_but(heartbeat_seconds=0.5)) as pair:
            mute = await _greeted(pair, "d")
            assert await mute.last_words() == "nothing heard from worker d for 3 s"
            assert sum(isinstance(frame, Ping) for frame, _ in mute.frames) >= 5
            await mute.close()
            await pair.assert_unharmed()

    run(test())


def test_a_peer_that_only_answers_pings_is_alive(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, usual_but(heartbeat_seconds=0.15)) as pair:
            patient = await _greeted(pair, "d")
            for answered in range(20):
                await patient.read(lambda answered=answered: len(_pings(patient)) > answered)
                patient.say(Pong(_pings(patient)[answered].stamp))
            assert pair.heard_by_b.links[-1].reason is None
            patient.say(Close("bye"))
            await patient.close()

    run(test())


CHILD = """
import asyncio, sys
from pathlib import Path
from farflung.transport.security.certificates import client_context
from farflung.transport.endpoint import Hello, Peer, dial
from farflung.transport.timeouts import Timeouts
from tests.support.links import Recorder, slice_header

async def main(address, authority, certificate, key):
    context = client_context(Path(authority).read_bytes(), certificate, key)
    hello = Hello("d", "worker", "data")
    link = await dial(address, context, hello, Peer("b", "worker"), Recorder(), Timeouts())
    while True:
        await link.send(slice_header(2**22), memoryview(bytes(2**22)))

asyncio.run(main(*sys.argv[1:]))
"""


def test_the_death_of_a_process_is_known_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, NEVER_SUSPECT) as pair:
            authority, certificate, key = pair.authority.files("d", "worker")
            arguments = [pair.listener.address, *map(str, (authority, certificate, key))]
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, *arguments)
            try:
                await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.messages))
            finally:
                child.kill()
                await child.wait()
            await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.reasons))
            assert "the process at the other end may have died" in pair.heard_by_b.reasons[0]
            await pair.assert_unharmed()

    run(test())


def test_a_reset_differs_from_a_proper_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, NEVER_SUSPECT) as pair:
            peer = await _greeted(pair, "d")
            peer.reset()
            await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.reasons))
            assert "connection reset" in pair.heard_by_b.reasons[0]
            await pair.assert_unharmed()

    run(test())


def test_a_peer_that_hangs_up_after_a_silence_is_not_called_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            rogue = await _greeted(pair, "d")
            link = pair.heard_by_b.links[-1]
            monkeypatch.setattr(
                link, "last_received_at", link.last_received_at - pair.timeouts.suspect_seconds
            )
            await rogue.close()
            await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.reasons))
            assert pair.heard_by_b.reasons == [GIVEN_UP]

    run(test())


async def _greeted(pair: Pair, id: str) -> RawPeer:
    """A raw peer that has said hello properly; b's link to it is the last of `heard_by_b.links`."""
    count = len(pair.heard_by_b.links)
    peer = await RawPeer.connect(pair.listener.address, pair.authority.holder(id, "worker"))
    peer.say(Hello(id, "worker", "data"))
    await peer.read(lambda: bool(peer.frames))
    assert isinstance(peer.frames[0][0], Hello)
    assert len(pair.heard_by_b.links) == count + 1
    assert pair.heard_by_b.links[-1].peer == Peer(id, "worker")
    return peer


def _payload(peer: RawPeer) -> int:
    return sum(len(payload) for frame, payload in peer.frames if isinstance(frame, Open | Chunk))


def _pings(peer: RawPeer) -> list[Ping]:
    return [frame for frame, _ in peer.frames if isinstance(frame, Ping)]


def _zeros(size: int) -> memoryview:
    return memoryview(bytes(size))


@pytest.mark.parametrize("unit", [3, None], ids=["a copy", "the state of an attempt"])
def test_how_fast_copies_come_says_nothing_of_the_path(unit: int | None, tmp_path: Path) -> None:
    """Their sender holds them back: a link on loopback was planned with as one of 1.3 Mbit/s."""

    async def test() -> float | None:
        async with paired(tmp_path) as pair:
            slow = await RawPeer.connect(pair.listener.address, pair.authority.holder("d", "worker"))
            slow.say(Hello("d", "worker", "data"))
            await slow.read(lambda: bool(slow.frames))
            header = msgspec.structs.replace(slice_header(100_000), unit=unit)
            slow.say(Open(0, header), bytes(10_000))
            for offset in range(10_000, 100_000, 10_000):
                await asyncio.sleep(0.02)
                slow.say(Chunk(0, offset), bytes(10_000))
            await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.messages))
            slow.say(Control(0, 4), b"done")  # the rate is taken once the message is over
            await pair.heard_by_b.until(lambda: "done" in map(bytes.decode, pair.heard_by_b.controls))
            link = next(one for one in pair.heard_by_b.links if one.peer.id == "d")
            found = link.incoming_bytes_per_second
            await slow.close()
            return found

    found = run(test())
    assert (found is None) == (unit is not None)


def test_a_link_that_is_over_keeps_nothing_of_an_unfinished_message(tmp_path: Path) -> None:
    """Links may stay in memory for long: a submitter held 64 MB more with each that it began a message on."""

    async def test() -> tuple[int, int]:
        async with paired(tmp_path) as pair:
            slow = await RawPeer.connect(pair.listener.address, pair.authority.holder("d", "submitter"))
            slow.say(Hello("d", "submitter", "control"))
            await slow.read(lambda: bool(slow.frames))
            for offset in range(0, 8_000_000, 1_000_000):
                slow.say(Control(offset, 9_000_000), bytes(1_000_000))
            link = next(one for one in pair.heard_by_b.links if one.peer.id == "d")
            tracemalloc.start()
            try:
                await asyncio.to_thread(eventually, "it has come", lambda: link.bytes_received >= 8_000_000)
                held = tracemalloc.get_traced_memory()[0]
                await slow.close()
                await pair.heard_by_b.until(lambda: bool(pair.heard_by_b.reasons))
                return held, tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()

    held, after = run(test())
    assert held > 4_000_000 and after < 1_000_000

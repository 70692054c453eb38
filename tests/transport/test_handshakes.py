"""Connections that do not say who they are keep nobody out."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.certificates import TestAuthority
from tests.support.links import Recorder, run, usual_but

from farflung.transport.endpoint import Hello, Peer, dial, listen
from farflung.transport.handshakes import LOOPBACK, MOST, Handshakes, source_of
from farflung.transport.listener import MOST_UNGREETED
from farflung.transport.net.addresses import parse_address
from farflung.transport.net.tls_stream import TlsStream
from farflung.transport.sparse_log import BURST, PERIOD_SECONDS, SparseLog
from farflung.transport.timeouts import Timeouts

B = Peer("b", "worker")


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", LOOPBACK),
        ("127.9.9.9", LOOPBACK),
        ("::1", LOOPBACK),
        ("::ffff:127.0.0.1", LOOPBACK),
        ("", ""),
    ],
)
def test_a_home_is_one_source(host: str, source: str) -> None:
    assert source_of(host) == source


def test_the_oldest_of_a_source_that_has_too_many_makes_room() -> None:
    table = Handshakes[int](most=100, most_of_one=3)
    assert [table.add(number, "192.0.2.7") for number in range(5)] == [None, None, None, 0, 1]
    assert table.add(9, "192.0.2.8") is None
    table.discard(3)
    assert table.add(10, "192.0.2.7") is None and len(table) == 4


def test_of_all_sources_the_one_with_most_makes_room() -> None:
    table = Handshakes[int](most=4, most_of_one=3)
    for number in range(3):
        table.add(number, "192.0.2.7")
    assert table.add(3, "192.0.2.8") is None
    assert table.add(4, "192.0.2.9") == 0
    assert [table.add(number, "127.0.0.1") for number in (5, 6, 7)] == [1, 5, 6]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=200))
def test_the_table_holds_what_was_added_and_is_neither_finished_nor_dropped(
    steps: list[tuple[int, bool]],
) -> None:
    table, there = Handshakes[int](most=8, most_of_one=4), dict[int, int]()
    for number, (source, finishes) in enumerate(steps):
        if finishes and there:
            done = min(there)
            table.discard(done)
            del there[done]
            continue
        there[number] = source
        dropped = table.add(number, f"192.0.2.{source}")
        if dropped is not None:
            of_source = [one for one, other in there.items() if other == there[dropped]]
            assert dropped == min(of_source) and dropped != number
            del there[dropped]
        assert len(table) == len(there) <= 8
        assert all(list(there.values()).count(one) <= 4 for one in there.values())


def test_a_flood_of_lines_is_counted() -> None:
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    log, now = logging.Logger("test"), [0.0]
    log.addHandler(Keep())
    sparse = SparseLog(log, lambda: now[0])
    for number in range(BURST + 30):
        sparse.write(logging.INFO, "refused %d", number)
    assert len(seen) == BURST
    now[0] = PERIOD_SECONDS
    sparse.write(logging.INFO, "refused again")
    assert seen[BURST:] == ["30 more lines about refused connections were left out", "refused again"]


def silent(address: str, count: int) -> list[socket.socket]:
    return [socket.create_connection(parse_address(address)) for _ in range(count)]


def test_silent_sockets_lock_nobody_out(tmp_path: Path) -> None:
    """256 of them did, for as long as a handshake may take: each further connection was closed."""

    async def test() -> None:
        authority = TestAuthority(tmp_path)
        server, client = authority.holder("b", "worker"), authority.holder("a", "worker")
        slow = usual_but(first_byte_seconds=1000.0, dial_seconds=1000.0)
        listener = await listen(
            "127.0.0.1:0", server.server, Hello("b", "worker", "data"), Recorder().admit, slow
        )
        sockets = await asyncio.to_thread(silent, listener.address, MOST + 10)
        own = Hello("a", "worker", "data")
        for _ in range(3):
            link = await dial(listener.address, client.client, own, B, Recorder(), Timeouts())
            assert link.peer.id == "b"
            await link.close("seen")
        for one in sockets:
            one.close()
        await listener.close()

    run(test())


def test_a_connection_that_says_nothing_is_closed_soon(tmp_path: Path) -> None:
    async def test() -> None:
        authority = TestAuthority(tmp_path)
        server = authority.holder("b", "worker")
        brief = usual_but(first_byte_seconds=0.05, dial_seconds=1000.0)
        listener = await listen(
            "127.0.0.1:0", server.server, Hello("b", "worker", "data"), Recorder().admit, brief
        )
        reader, writer = await asyncio.open_connection(*parse_address(listener.address))
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
        await listener.close()

    run(test())


def test_a_holder_that_says_hello_on_none_of_its_connections_loses_the_oldest(tmp_path: Path) -> None:
    async def test() -> None:
        authority = TestAuthority(tmp_path)
        server, client = authority.holder("b", "worker"), authority.holder("a", "worker")
        patient = usual_but(dial_seconds=1000.0)
        listener = await listen(
            "127.0.0.1:0", server.server, Hello("b", "worker", "data"), Recorder().admit, patient
        )
        streams: list[tuple[TlsStream, Gone]] = []
        for _ in range(MOST_UNGREETED + 2):
            raw = socket.create_connection(parse_address(listener.address))
            raw.setblocking(False)
            stream = await TlsStream.shake_hands(raw, client.client, False, B.name)
            gone = Gone()
            stream.start(gone)
            streams.append((stream, gone))
        await asyncio.wait_for(asyncio.gather(*(gone.event.wait() for _, gone in streams[:2])), 30)
        assert not any(gone.event.is_set() for _, gone in streams[2:])
        link = await dial(
            listener.address, client.client, Hello("a", "worker", "data"), B, Recorder(), Timeouts()
        )
        await link.close("seen")
        for stream, _ in streams:
            stream.abort()
        await listener.close()

    run(test())


class Gone:
    """Owns a TLS stream, and says when it is over or its end was announced."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._memory = memoryview(bytearray(4096))

    def buffer(self) -> memoryview:
        return self._memory

    def received(self, count: int) -> None:
        self.event.set()

    def on_drained(self) -> None:
        pass

    def on_lost(self, error: OSError | None) -> None:
        self.event.set()

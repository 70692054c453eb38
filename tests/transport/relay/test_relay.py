"""Two holders and a relay, all on real sockets; what passes through the relay is kept and searched."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.certificates import TestAuthority
from tests.support.links import Recorder, run, slice_header, usual_but

from farflung.errors import ConnectionFailed
from farflung.transport.endpoint import Hello, Link, Listener, Peer, dial, dial_over, listen
from farflung.transport.net.addresses import parse_address
from farflung.transport.relay.circuits import HELLO_BYTES, MAGIC, TOKEN_BYTES, UNKNOWN, Circuit, join
from farflung.transport.relay.relay import Relay
from farflung.transport.timeouts import Timeouts

TIMEOUTS = Timeouts()
PLENTY = 2**40
A, B, R = Peer("a", "worker"), Peer("b", "worker"), Peer("r", "worker")


class Listening(Relay):
    """A relay that keeps what passes."""

    def __init__(self, bytes_per_second: float) -> None:
        super().__init__(bytes_per_second, TIMEOUTS)
        self.seen = bytearray()

    async def _pump(self, circuit: Circuit, source: socket.socket, target: socket.socket) -> None:
        tap, other = socket.socketpair()
        loop = asyncio.get_running_loop()
        for end in (tap, other):
            end.setblocking(False)

        async def copy() -> None:
            while piece := await loop.sock_recv(source, 2**16):
                self.seen += piece
                await loop.sock_sendall(tap, piece)
            tap.shutdown(socket.SHUT_WR)

        with tap, other:
            copying = asyncio.create_task(copy())
            try:
                await super()._pump(circuit, other, target)
            finally:
                copying.cancel()
                await asyncio.gather(copying, return_exceptions=True)


@dataclass
class Place:
    """Worker b listens, a and b know nothing of each other but over the relay on r's port."""

    authority: TestAuthority
    relay: Relay
    port: Listener
    b: Listener
    heard_by_a: Recorder
    heard_by_b: Recorder

    def tokens(self, byte_quota: int = PLENTY) -> tuple[bytes, bytes]:
        pair = secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(TOKEN_BYTES)
        self.relay.grant("a - b", pair, byte_quota)
        return pair

    async def linked(self, byte_quota: int = PLENTY) -> tuple[Link, Link]:
        """A link from a to b through the relay, both ends."""
        one, other = self.tokens(byte_quota)
        dialling = asyncio.create_task(self.dialled(one))
        raw = await join(self.port.address, other, TIMEOUTS)
        b = await self.b.accept_circuit(raw, A, "relay through r")
        return await dialling, b

    async def dialled(self, token: bytes) -> Link:
        raw = await join(self.port.address, token, TIMEOUTS)
        client, hello = self.authority.holder("a", "worker").client, Hello("a", "worker", "data")
        return await dial_over(raw, "relay through r", client, hello, B, self.heard_by_a, TIMEOUTS)


@asynccontextmanager
async def place(folder: Path, relay: Relay) -> AsyncIterator[Place]:
    authority, heard_by_b = TestAuthority(folder), Recorder()
    r, b = (authority.holder(id, "worker") for id in "rb")
    port = await listen("127.0.0.1:0", r.server, Hello("r", "worker", "data"), Recorder().admit, TIMEOUTS)
    port.set_relay(relay)
    listener = await listen("127.0.0.1:0", b.server, Hello("b", "worker", "data"), heard_by_b.admit, TIMEOUTS)
    try:
        yield Place(authority, relay, port, listener, Recorder(), heard_by_b)
    finally:
        await listener.close()
        await port.close()


async def open_socket(address: str) -> socket.socket:
    loop, raw = asyncio.get_running_loop(), socket.socket()
    raw.setblocking(False)
    await loop.sock_connect(raw, parse_address(address))
    return raw


def test_a_relay_carries_a_link_in_both_directions_and_sees_only_ciphertext(tmp_path: Path) -> None:
    secret, gradient = os.urandom(64) * 4096, b"the weights of the embedding" * 8192

    async def scene() -> bytes:
        relay = Listening(1e9)
        async with place(tmp_path, relay) as here:
            a, b = await here.linked()
            assert (a.peer, b.peer) == (B, A)
            await here.heard_by_b.until(lambda: bool(here.heard_by_b.links))
            await a.send(slice_header(len(secret)), memoryview(secret))
            await b.send(slice_header(len(gradient)), memoryview(gradient))
            a.send_control(b"claim of job-1")
            await here.heard_by_b.until(lambda: bool(here.heard_by_b.messages and here.heard_by_b.controls))
            await here.heard_by_a.until(lambda: bool(here.heard_by_a.messages))
            assert bytes(here.heard_by_b.messages[0][1]) == secret
            assert bytes(here.heard_by_a.messages[0][1]) == gradient
            assert relay.circuits == 1
            await a.close("seen")
            await here.heard_by_b.until(lambda: bool(here.heard_by_b.reasons))
            assert here.heard_by_b.reasons == ["worker a closed the link: seen"]
        return bytes(relay.seen)

    seen = run(scene())
    assert len(seen) > len(secret) + len(gradient)
    for plain in (secret[:64], gradient[:28], b"claim of job-1", b"weight", b"FARF"):
        assert plain not in seen
    # Certificates travel encrypted in TLS 1.3; only the server's name is asked for in the clear.
    assert seen.count(b"b.worker.farflung.internal") == 1 and b"a.worker.farflung.internal" not in seen


def test_the_port_of_a_relay_goes_on_taking_links(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path, Relay(1e9, TIMEOUTS)) as here:
            client, hello = here.authority.holder("a", "worker").client, Hello("a", "worker", "data")
            link = await dial(here.port.address, client, hello, R, Recorder(), TIMEOUTS)
            assert link.path == "direct"
            await link.close("seen")

    run(scene())


def test_an_unknown_or_spent_token_and_garbage_get_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        async with place(tmp_path, Relay(1e9, TIMEOUTS)) as here:
            a, _ = await here.linked()
            for hello in (MAGIC + bytes(TOKEN_BYTES), MAGIC + here.tokens()[0][:-1] + b"?"):
                with await open_socket(here.port.address) as raw:
                    await loop.sock_sendall(raw, hello)
                    assert await loop.sock_recv(raw, 10) == UNKNOWN
                    assert await loop.sock_recv(raw, 10) == b""
            for garbage in (b"FARF" + os.urandom(HELLO_BYTES), MAGIC[:-1] + bytes(HELLO_BYTES)):
                with await open_socket(here.port.address) as raw:
                    await loop.sock_sendall(raw, garbage)
                    try:
                        assert await loop.sock_recv(raw, 10) == b""
                    except ConnectionResetError:
                        pass
            await a.send(slice_header(3), memoryview(b"abc"))
            await here.heard_by_b.until(lambda: bool(here.heard_by_b.messages))
            await a.close("seen")

    run(scene())


def test_one_side_alone_waits_for_a_bounded_time(tmp_path: Path) -> None:
    async def scene() -> None:
        brief = usual_but(dial_seconds=0.5, circuit_seconds=1.5)
        async with place(tmp_path, Relay(1e9, brief)) as here:
            one, other = here.tokens()
            with pytest.raises(ConnectionFailed, match=r"did not connect both sides within 0\.5 s"):
                await join(here.port.address, one, brief)
            await asyncio.sleep(2 * brief.circuit_seconds)
            with pytest.raises(ConnectionFailed, match="did not connect both sides"):
                await join(here.port.address, other, brief)

    run(scene())


def test_a_relay_that_does_not_answer_differs_from_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silence(*_: object) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr("farflung.transport.relay.circuits.connect", silence)
    with pytest.raises(ConnectionFailed, match=r"192\.0\.2\.1:7700 did not answer within 4 s: .* firewall"):
        run(join("192.0.2.1:7700", bytes(TOKEN_BYTES), TIMEOUTS))


def test_a_relay_that_falls_silent_differs_from_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> bytes:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    async def scene() -> None:
        async with place(tmp_path, Relay(1e9, TIMEOUTS)) as here:
            one, _ = here.tokens()
            monkeypatch.setattr("farflung.transport.relay.circuits._read", lost)
            with pytest.raises(ConnectionFailed, match="did not answer within 5 s"):
                await join(here.port.address, one, TIMEOUTS)

    run(scene())


def test_a_side_that_is_earlier_than_its_token_is_joined_later(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path, Relay(1e9, TIMEOUTS)) as here:
            one, other = secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(TOKEN_BYTES)
            early = asyncio.create_task(join(here.port.address, one, TIMEOUTS))
            await asyncio.sleep(0.05)
            here.relay.grant("a - b", (one, other), PLENTY)
            with await join(here.port.address, other, TIMEOUTS), await early:
                assert here.relay.circuits == 1

    run(scene())


def test_a_circuit_ends_when_its_quota_is_spent(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path, Relay(1e9, TIMEOUTS)) as here:
            a, _ = await here.linked(byte_quota=200_000)
            with pytest.raises(ConnectionFailed):
                for _ in range(100):
                    await a.send(slice_header(100_000), memoryview(bytes(100_000)))
            assert sum(len(buffer) for _, buffer in here.heard_by_b.messages) < 200_000
            await here.heard_by_b.until(lambda: bool(here.heard_by_b.reasons))

    run(scene())


def test_the_wrong_peer_at_the_other_end_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path, Relay(1e9, TIMEOUTS)) as here:
            one, other = here.tokens()
            dialling = asyncio.create_task(here.dialled(one))
            raw = await join(here.port.address, other, TIMEOUTS)
            with pytest.raises(ConnectionFailed, match="expected worker c, found worker a"):
                await here.b.accept_circuit(raw, Peer("c", "worker"), "relay through r")
            with pytest.raises(ConnectionFailed):
                await dialling

    run(scene())


def test_a_relay_keeps_to_its_rate(tmp_path: Path) -> None:
    async def scene() -> float:
        loop = asyncio.get_running_loop()
        async with place(tmp_path, Relay(1e6, TIMEOUTS)) as here:
            a, _ = await here.linked()
            began = loop.time()
            for _ in range(5):
                await a.send(slice_header(100_000), memoryview(bytes(100_000)))
            await here.heard_by_b.until(lambda: len(here.heard_by_b.messages) == 5)
            took = loop.time() - began
            await a.close("seen")
        return took

    assert run(scene()) > 0.4  # half a second at the rate, less what was saved up


def test_a_full_relay_turns_both_sides_of_a_circuit_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farflung.transport.relay.relay.MAXIMUM_CIRCUITS", 1)

    async def scene() -> None:
        relay = Relay(1e9, TIMEOUTS)
        async with place(tmp_path, relay) as here:
            late = secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(TOKEN_BYTES)
            relay.grant("late", late, PLENTY)
            loop, first = asyncio.get_running_loop(), await open_socket(here.port.address)
            await loop.sock_sendall(first, MAGIC + late[0])
            a, _ = await here.linked()
            second = await open_socket(here.port.address)
            await loop.sock_sendall(second, MAGIC + late[1])
            soon = 0.8 * TIMEOUTS.circuit_seconds  # not when the token would be forgotten anyway
            for one in (second, first):
                assert await asyncio.wait_for(loop.sock_recv(one, 2), soon) == UNKNOWN
                assert await asyncio.wait_for(loop.sock_recv(one, 2), soon) == b""
                one.close()
            await a.close("seen")

    run(scene())

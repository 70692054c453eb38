from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Holder, TestAuthority
from tests.support.links import Pair, RawPeer, Recorder, paired, run, slice_header, usual_but

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.transport.endpoint import Handler, Hello, Link, Listener, Peer, ask, dial, dial_any, listen
from farflung.transport.security.certificates import ALPN
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import Close, Join, Ping

B = Peer("b", "worker")


async def reach(pair: Pair, context: ssl.SSLContext, hello: Hello, expected: Peer = B) -> Link:
    return await dial(pair.listener.address, context, hello, expected, Recorder(), pair.timeouts)


def test_both_sides_learn_the_other_ones_id_role_and_boot(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            assert (pair.a.peer, pair.b.peer) == (B, Peer("a", "worker"))
            assert pair.a.kind == pair.b.kind == "data"
            assert pair.a.boot == pair.b.boot != ""
            assert pair.a.remote == pair.listener.address == pair.b.local
            assert pair.b.remote == pair.a.local
            await pair.assert_unharmed()

    run(test())


def test_a_link_of_another_kind_stands_beside_the_first(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            holder = pair.authority.holder("a", "worker")
            link = await reach(pair, holder.client, Hello("a", "worker", "control"))
            assert pair.heard_by_b.links[-1].kind == "control"
            await link.close("seen")
            await pair.assert_unharmed()

    run(test())


def test_the_handler_hears_nothing_before_the_dialler_has_the_link(tmp_path: Path) -> None:
    async def test() -> None:
        authority = TestAuthority(tmp_path)
        server, client = authority.holder("b", "worker"), authority.holder("a", "worker")

        def admit(link: Link) -> Handler:
            link.send_control(b"welcome")
            link.post(slice_header(100_000), memoryview(bytes(100_000)))
            return Recorder()

        listener = await listen("[::1]:0", server.server, Hello("b", "worker", "data"), admit, Timeouts())
        heard = Recorder()
        link = await dial(listener.address, client.client, Hello("a", "worker", "data"), B, heard, Timeouts())
        assert (heard.controls, heard.opened) == ([], [])
        await heard.until(lambda: bool(heard.messages))
        assert heard.order == ["control", "slice"]
        await link.close("seen")
        await listener.close()

    run(test())


def test_one_port_takes_both_families(tmp_path: Path) -> None:
    async def test() -> None:
        authority = TestAuthority(tmp_path)
        server, client = authority.holder("b", "worker"), authority.holder("a", "worker")
        heard, own = Recorder(), Hello("b", "worker", "data")
        listener = await listen("[::]:0", server.server, own, heard.admit, Timeouts())
        assert listener.address == f"[::]:{listener.port}"
        for host in ("127.0.0.1", "[::1]"):
            address, hello = f"{host}:{listener.port}", Hello("a", "worker", "data")
            link = await dial(address, client.client, hello, B, Recorder(), Timeouts())
            assert link.remote == address
            assert heard.links[-1].remote == link.local
            await link.close("seen")
        await listener.close()

    run(test())


def test_a_listener_that_closes_sends_the_reason_to_every_peer(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            _, heard_by_c = await pair.another()
            await pair.listener.close("the worker stops")
            for heard in (pair.heard_by_a, heard_by_c):
                await heard.until(lambda heard=heard: bool(heard.reasons))
                assert heard.reasons == ["worker b closed the link: the worker stops"]
            holder = pair.authority.holder("e", "worker")
            with pytest.raises(ConnectionFailed, match="refused the connection: check the port"):
                await reach(pair, holder.client, Hello("e", "worker", "data"))

    run(test())


def test_a_process_without_descriptors_listens_on_when_it_has_some_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path, usual_but(heartbeat_seconds=0.1)) as pair:
            holder = pair.authority.holder("e", "worker")
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.socket() as client:
                client.setblocking(False)
                resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
                try:
                    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", pair.listener.port))
                    await pair.assert_unharmed()
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            link = await reach(pair, holder.client, Hello("e", "worker", "data"))
            await link.close("seen")

    run(test())


@pytest.mark.parametrize("abort", [False, True])
def test_who_goes_away_before_the_handshake_is_no_news(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, abort: bool
) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            with socket.create_connection(("127.0.0.1", pair.listener.port)) as client:
                client.sendall(b"\x16\x03\x01")
                if abort:  # with a reset
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            async with asyncio.timeout(20):
                while "a TLS handshake ended" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await pair.assert_unharmed()

    with caplog.at_level("DEBUG", "farflung"):
        run(test())
    assert all(record.levelname == "DEBUG" for record in caplog.records if "handshake" in record.message)


def test_a_handler_hears_nothing_of_a_link_that_another_address_made_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def both(attempts: Sequence[Callable[[], Any]], discard: Callable[[Link], Any]) -> Link:
        first, second = [await attempt() for attempt in attempts]
        await discard(second)
        return first

    monkeypatch.setattr("farflung.transport.endpoint.race", both)

    async def test() -> None:
        async with paired(tmp_path) as pair:
            holder, heard = pair.authority.holder("c", "worker"), Recorder()
            addresses, hello = [pair.listener.address] * 2, Hello("c", "worker", "data")
            link = await dial_any(addresses, holder.client, hello, B, heard, pair.timeouts)
            assert heard.reasons == [] and link.reason is None
            await link.close("seen")
            assert heard.reasons == ["seen"]

    run(test())


def test_a_peer_that_is_not_admitted_hears_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        def admit(link: Link) -> Handler:
            raise ProtocolError(f"{link.peer} is no neighbour in this plan")

        authority = TestAuthority(tmp_path)
        server, client = authority.holder("b", "worker"), authority.holder("a", "worker")
        own, hello = Hello("b", "worker", "data"), Hello("a", "worker", "data")
        listener = await listen("127.0.0.1:0", server.server, own, admit, Timeouts())
        heard = Recorder()
        with pytest.raises(ConnectionFailed, match="worker a is no neighbour in this plan"):
            await dial(listener.address, client.client, hello, B, heard, Timeouts())
        assert heard.reasons == []
        await listener.close()

    run(test())
    assert "refused worker a at " in caplog.text and ": worker a is no neighbour in this plan" in caplog.text


def test_certificates_of_another_authority_are_refused_by_either_side(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "foreign").mkdir()
        foreign = TestAuthority(tmp_path / "foreign").holder("a", "worker")
        async with paired(tmp_path) as pair:
            with pytest.raises(ConnectionFailed, match=r"its certificate was refused: another authority"):
                await reach(pair, foreign.client, Hello("a", "worker", "data"))
            foreign.client.load_verify_locations(cadata=_authority_pem(tmp_path))
            with pytest.raises(ConnectionFailed, match="authority"):
                await reach(pair, foreign.client, Hello("a", "worker", "data"))
            await pair.assert_unharmed()

    run(test())


def test_a_dialler_without_a_certificate_gets_no_link(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            with pytest.raises(ConnectionFailed, match="you sent no certificate: this port admits only"):
                await reach(pair, pair.authority.stranger(), Hello("a", "worker", "data"))
            await pair.assert_unharmed()

    run(test())


def test_a_port_that_requires_certificates_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        authority = TestAuthority(tmp_path)
        server, own = authority.holder("b", "worker"), Hello("b", "worker", "data")
        listener = await listen("127.0.0.1:0", server.server, own, Recorder().admit, Timeouts())
        with pytest.raises(ConnectionFailed, match="this port admits only certificate holders"):
            hello = Hello("a", "worker", "data")
            await dial(listener.address, authority.stranger(), hello, B, Recorder(), Timeouts())
        with pytest.raises(ConnectionFailed, match="this port admits only certificate holders"):
            await ask(listener.address, authority.stranger(), B.name, b"let me in", 10)
        await listener.close()

    run(test())


@pytest.mark.parametrize("said", [Peer("c", "worker"), Peer("a", "submitter")])
def test_a_hello_that_is_not_the_certificates_is_refused(tmp_path: Path, said: Peer) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            holder = pair.authority.holder("a", "worker")
            with pytest.raises(
                ConnectionFailed, match=f"certificate is of worker a, but the hello is from {said}"
            ):
                await reach(pair, holder.client, Hello(said.id, said.role, "data"))
            assert len(pair.heard_by_b.links) == 1
            await pair.assert_unharmed()

    run(test())


@pytest.mark.parametrize("expected", [Peer("c", "worker"), Peer("b", "submitter"), Peer("broker", "broker")])
def test_a_dialler_refuses_another_holder_than_it_dialled(tmp_path: Path, expected: Peer) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            holder = pair.authority.holder("a", "worker")
            hello = Hello("a", "worker", "data")
            with pytest.raises(ConnectionFailed, match="certificate was refused: Hostname mismatch"):
                await reach(pair, holder.client, hello, expected)
            holder.client.check_hostname = False
            with pytest.raises(ConnectionFailed, match=f"expected {expected}, found worker b"):
                await reach(pair, holder.client, hello, expected)
            await pair.assert_unharmed()

    run(test())


def test_another_protocol_on_either_side_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            holder = pair.authority.holder("a", "worker")
            holder.client.set_alpn_protocols(["h2"])
            with pytest.raises(ConnectionFailed, match=f"speaks {ALPN} .ALPN., found none"):
                await reach(pair, holder.client, Hello("a", "worker", "data"))
            rogue = await RawPeer.connect(pair.listener.address, holder)
            assert "(ALPN), found none" in await rogue.last_words()
            await rogue.close()
            await pair.assert_unharmed()

    run(test())


def test_a_holder_that_does_not_say_hello_first_is_hung_up_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            holder = pair.authority.holder("d", "worker")
            hasty = await RawPeer.connect(pair.listener.address, holder)
            hasty.say(Ping(1.0))
            assert await hasty.last_words() == "expected a hello first, found a ping frame"
            pair.listener.set_timeouts(usual_but(dial_seconds=2))
            mute = await RawPeer.connect(pair.listener.address, holder)
            assert await mute.last_words() == "no hello from worker d within 2 s"
            await hasty.close()
            await mute.close()
            assert len(pair.heard_by_b.links) == 1

    run(test())


def test_unreachable_addresses_have_different_messages(tmp_path: Path) -> None:
    async def test() -> None:
        client = TestAuthority(tmp_path).holder("a", "worker").client
        with socket.create_server(("127.0.0.1", 0)) as mute:
            port = mute.getsockname()[1]
            for address, cause in (
                ("no-such-host.invalid:7700", "cannot resolve the name"),
                (f"127.0.0.1:{port}", "did not answer within 0.3 s"),
                ("[::1", "expected HOST:PORT or"),
            ):
                hello, limits = Hello("a", "worker", "data"), usual_but(dial_seconds=0.3)
                with pytest.raises(ConnectionFailed, match=cause):
                    await dial(address, client, hello, B, Recorder(), limits)

    run(test())


def test_a_server_that_is_not_ours_is_no_peer(tmp_path: Path) -> None:
    async def test() -> None:
        client = TestAuthority(tmp_path).holder("a", "worker").client

        async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail.example ESMTP\r\n")
            writer.close()

        server = await asyncio.start_server(shout, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match="TLS failed"):
            await dial(address, client, Hello("a", "worker", "data"), B, Recorder(), Timeouts())
        server.close()
        await server.wait_closed()

    run(test())


def test_a_cancelled_dial_leaves_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        client = TestAuthority(tmp_path).holder("a", "worker").client
        with socket.create_server(("127.0.0.1", 0)) as mute:
            address = f"127.0.0.1:{mute.getsockname()[1]}"
            hello = Hello("a", "worker", "data")
            task = asyncio.ensure_future(dial(address, client, hello, B, Recorder(), Timeouts()))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(test())


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            server = pair.authority.holder("c", "worker").server
            own = Hello("c", "worker", "data")
            with pytest.raises(ConnectionFailed, match=f"port {pair.listener.port} is in use on 127"):
                await listen(pair.listener.address, server, own, Recorder().admit, Timeouts())
            with pytest.raises(ConnectionFailed, match=r"cannot listen on 192\.0\.2\.1:7700"):
                await listen("192.0.2.1:7700", server, own, Recorder().admit, Timeouts())

    run(test())


async def broker_door(holder: Holder, seen: list[tuple[bytes, str]], timeouts: Timeouts) -> Listener:
    """A listener that answers strangers."""

    async def answer(request: bytes, remote: str) -> bytes:
        seen.append((request, remote))
        if request == b"slowly":
            await asyncio.sleep(60)
        if request == b"refuse me":
            raise ProtocolError("no such token")
        return b"answer to " + request

    own = Hello("b", "worker", "control")
    return await listen("127.0.0.1:0", holder.server, own, Recorder().admit, timeouts, on_joiner=answer)


def test_a_joiner_may_send_one_request_and_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        authority = TestAuthority(tmp_path)
        holder = authority.holder("b", "worker", admit_joiners=True)
        context = authority.stranger()
        seen: list[tuple[bytes, str]] = []
        listener = await broker_door(holder, seen, Timeouts())
        assert await ask(listener.address, context, B.name, b"x" * 8000, 10) == b"answer to " + b"x" * 8000
        assert seen[0][1].startswith("127.0.0.1:")
        with pytest.raises(ConnectionFailed, match="refused: no such token"):
            await ask(listener.address, context, B.name, b"refuse me", 10)
        with pytest.raises(ConnectionFailed, match="at most 8192 bytes in a join frame, found 8193"):
            await ask(listener.address, context, B.name, bytes(8193), 10)
        with pytest.raises(ConnectionFailed, match="certificate was refused"):
            await ask(listener.address, context, "c.worker.farflung.internal", b"?", 10)
        stranger = await RawPeer.connect(listener.address, Holder(context, context))
        stranger.say(Ping(1.0))
        assert "admits only certificate holders" in await stranger.last_words()
        await stranger.close()
        assert len(seen) == 2
        await listener.close()

    run(test())


def test_joiners_have_a_time_limit_and_do_not_outlive_the_listener(tmp_path: Path) -> None:
    async def test() -> None:
        authority = TestAuthority(tmp_path)
        holder = authority.holder("b", "worker", admit_joiners=True)
        context = authority.stranger()
        seen: list[tuple[bytes, str]] = []
        hasty = await broker_door(holder, seen, usual_but(join_seconds=0.3))
        with pytest.raises(ConnectionFailed, match="hung up"):
            await ask(hasty.address, context, B.name, b"slowly", 10)
        await hasty.close()
        patient = await broker_door(holder, seen, Timeouts())
        before = len(seen)
        asked = asyncio.ensure_future(ask(patient.address, context, B.name, b"slowly", 60))
        while len(seen) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await patient.close()
        with pytest.raises(ConnectionFailed):
            await asked

    run(test())


def test_a_port_without_answers_for_joiners_refuses_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with paired(tmp_path) as pair:
            context = pair.authority.stranger()
            with pytest.raises(ConnectionFailed, match="admits only certificate holders"):
                await ask(pair.listener.address, context, B.name, b"?", 10)
            stranger = await RawPeer.connect(pair.listener.address, Holder(context, context))
            stranger.say(Join(), b"?")
            await stranger.read(lambda: bool(stranger.frames))
            assert isinstance(stranger.frames[0][0], Close)
            await stranger.close()
            await pair.assert_unharmed()

    run(test())


def _authority_pem(folder: Path) -> str:
    return (folder / "ca.pem").read_text()

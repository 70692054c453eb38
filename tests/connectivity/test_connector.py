"""A connector and an answerer on real sockets; the broker between them is a function that passes words on."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.certificates import TestAuthority
from tests.support.links import Recorder, nowhere, run, usual_but

from farflung.connectivity.answerer import Answerer
from farflung.connectivity.connector import Connector, ConnectRequest
from farflung.errors import ConnectionFailed, ProtocolError
from farflung.protocol.fields import Message
from farflung.protocol.reachability import AskCircuit, AskReverse, Circuit, DialBack, NotReached
from farflung.transport.endpoint import Handler, Hello, Link, Listener, Peer, dial, listen
from farflung.transport.net.addresses import parse_address
from farflung.transport.relay.circuits import TOKEN_BYTES
from farflung.transport.relay.relay import Relay
from farflung.transport.timeouts import Timeouts

TIMEOUTS = Timeouts()
A, B = Peer("a", "submitter"), Peer("b", "worker")


@dataclass
class Worker:
    """Worker b: what it expects, hears and is asked."""

    heard: Recorder = field(default_factory=Recorder)
    entered_links: list[Link] = field(default_factory=list)
    expected: Peer | None = A
    tell: Callable[[Message], None] = lambda message: None

    @property
    def handler(self) -> Handler:
        return self.heard

    def expects(self, job: str, attempt: int, peer: str) -> Peer | None:
        return self.expected if (job, attempt, peer) == ("job-1", 1, "a") else None

    def accept(self, link: Link) -> Handler:
        self.entered_links.append(link)
        return self.heard.admit(link)


class Broker:
    """Passes words between a and b; `relay` is where circuits lead, if there is one."""

    def __init__(self) -> None:
        self.asked: list[Message] = []
        self.was_asked = asyncio.Event()
        self.connector: Connector | None = None
        self.answerer: Answerer | None = None
        self.listener: Listener | None = None
        self.relay: Relay | None = None
        self.relay_address = ""
        self.silent = False

    def from_a(self, message: Message) -> None:
        self.asked.append(message)
        self.was_asked.set()
        if not self.silent:
            asyncio.get_running_loop().call_soon(self._pass, message)

    def from_b(self, message: Message) -> None:
        assert isinstance(message, NotReached) and self.connector is not None
        self.connector.on_answer(NotReached(message.number, "job-1", 1, "b", message.reason))

    def _pass(self, message: Message) -> None:
        assert self.connector is not None and self.answerer is not None and self.listener is not None
        if isinstance(message, AskReverse):
            back = DialBack(message.number, "job-1", 1, "a", [f"127.0.0.1:{message.port}"])
            self.answerer.on_request(back, self.listener)
        elif isinstance(message, AskCircuit):
            if self.relay is None or "r" in message.without:
                self.connector.on_answer(NotReached(message.number, "job-1", 1, "b", "no relay is on offer"))
                return
            one, other = secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(TOKEN_BYTES)
            where = [self.relay_address]
            self.answerer.on_request(
                Circuit(message.number, "job-1", 1, "a", "r", where, other, False), self.listener
            )
            self.connector.on_answer(Circuit(message.number, "job-1", 1, "b", "r", where, one, True))
            self.relay.grant("a - b", (one, other), 2**30)


@dataclass
class Place:
    """Submitter a seeks worker b, who listens; `a_is_found_at` is what a advertises."""

    broker: Broker
    worker: Worker
    connector: Connector
    listener: Listener
    a_listens: Listener
    heard_by_a: Recorder
    authority: TestAuthority

    async def connect(self, *addresses: str) -> tuple[Link, str]:
        reached = await self.connector.connect(ConnectRequest("job-1", 1, B, addresses), self.heard_by_a)
        await self.worker.heard.until(lambda: bool(self.worker.heard.links))
        return reached.link, reached.tried

    async def talk(self, link: Link) -> None:
        """Whoever sought speaks first, and is answered."""
        link.send_control(b"claim")
        await self.worker.heard.until(lambda: self.worker.heard.controls == [b"claim"])
        self.worker.heard.links[-1].send_control(b"welcome")
        await self.heard_by_a.until(lambda: self.heard_by_a.controls == [b"welcome"])


@asynccontextmanager
async def place(
    folder: Path, a_can_be_dialled: bool = True, relayed: bool = False, timeouts: Timeouts = TIMEOUTS
) -> AsyncIterator[Place]:
    authority, broker, worker = TestAuthority(folder), Broker(), Worker()
    a, b, r = (
        authority.holder("a", "submitter"),
        authority.holder("b", "worker"),
        authority.holder("r", "worker"),
    )
    own = Hello("a", "submitter", "data")
    a_listens = await listen("127.0.0.1:0", a.server, own, lambda link: connector.admit(link), timeouts)
    listener = await listen("127.0.0.1:0", b.server, Hello("b", "worker", "data"), worker.accept, timeouts)
    found_at = a_listens.address if a_can_be_dialled else nowhere()

    async def port() -> int:
        return parse_address(found_at)[1]

    connector = Connector(own, a.client, nowhere, port, broker.from_a, lambda: timeouts)
    worker.tell = broker.from_b
    answerer = Answerer(Hello("b", "worker", "data"), b.client, nowhere, worker, lambda: timeouts)
    broker.connector, broker.answerer, broker.listener = connector, answerer, listener
    closing = [a_listens, listener]
    if relayed:
        closing.append(await listen("127.0.0.1:0", r.server, Hello("r", "worker", "data"), refuse, timeouts))
        broker.relay, broker.relay_address = Relay(1e9, timeouts), closing[-1].address
        closing[-1].set_relay(broker.relay)
    try:
        yield Place(broker, worker, connector, listener, a_listens, Recorder(), authority)
    finally:
        await answerer.close()
        for one in closing:
            await one.close()
        for link in worker.entered_links:
            await link.close("the test is over")


def refuse(link: Link) -> Handler:
    raise ProtocolError("only circuits here")


def test_a_peer_is_dialled_at_the_address_that_works(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path) as here:
            link, tried = await here.connect(nowhere(), here.listener.address)
            assert (link.path, tried, here.broker.asked) == ("direct", "", [])
            await here.talk(link)

    run(scene())


def test_a_peer_that_cannot_be_dialled_dials_back_and_waits_to_be_spoken_to(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path) as here:
            link, tried = await here.connect(nowhere())
            assert link.path == here.worker.heard.links[-1].path == "reverse"
            assert tried.startswith("dialled: 127.0.0.1") and "refused the connection" in tried
            await here.talk(link)

    run(scene())


def test_when_neither_can_dial_a_relay_joins_them(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path, a_can_be_dialled=False, relayed=True) as here:
            link, tried = await here.connect(nowhere())
            assert link.path == here.worker.heard.links[-1].path == "relay through r"
            assert "dialled: " in tried and "asked to dial back: " in tried
            await here.talk(link)
            # The link is lost: within the attempt the relay is where it is sought first.
            await link.close("lost")
            here.broker.asked.clear()
            again, tried = await here.connect(nowhere())
            assert (again.path, tried) == ("relay through r", "")
            assert [type(message) for message in here.broker.asked] == [AskCircuit]

    run(scene())


def test_without_a_route_the_message_has_every_reason_and_advice(tmp_path: Path) -> None:
    async def scene() -> str:
        async with place(tmp_path, a_can_be_dialled=False) as here:
            with pytest.raises(ConnectionFailed) as caught:
                await here.connect(nowhere())
        return str(caught.value)

    words = run(scene())
    assert words.startswith("no route to worker b: dialled: 127.0.0.1")
    assert "asked to dial back: 127.0.0.1" in words and "over a relay: no relay is on offer" in words
    assert "What helps: let a worker's TCP port through" in words


def test_a_relay_that_leads_nowhere_is_not_asked_for_again(tmp_path: Path) -> None:
    async def scene() -> str:
        async with place(tmp_path, a_can_be_dialled=False, relayed=True) as here:
            here.broker.relay_address = nowhere()
            with pytest.raises(ConnectionFailed) as caught:
                await here.connect(nowhere())
            circuits = [message for message in here.broker.asked if isinstance(message, AskCircuit)]
            assert [message.without for message in circuits] == [[], ["r"]]
        return str(caught.value)

    assert "over a relay: relay through r: 127.0.0.1" in run(scene())


def test_a_broker_that_says_nothing_is_waited_for_for_a_bounded_time(tmp_path: Path) -> None:
    async def scene() -> str:
        brief = usual_but(reverse_seconds=0.6)
        async with place(tmp_path, timeouts=brief) as here:
            here.broker.silent = True
            with pytest.raises(ConnectionFailed) as caught:
                await here.connect(nowhere())
        return str(caught.value)

    words = run(scene())
    assert "no answer from worker b within 0.6 s" in words and "no answer from the broker" in words


def test_a_worker_dials_only_its_neighbours_in_the_plan(tmp_path: Path) -> None:
    async def scene() -> str:
        async with place(tmp_path) as here:
            here.worker.expected = None
            with pytest.raises(ConnectionFailed) as caught:
                await here.connect(nowhere())
            assert not here.worker.heard.links
        return str(caught.value)

    assert "asked to dial back: it does not work for that attempt of the job" in run(scene())


def test_a_peer_that_dials_back_unasked_is_refused(tmp_path: Path) -> None:
    async def scene() -> str:
        async with place(tmp_path) as here:
            client, hello = here.authority.holder("b", "worker").client, Hello("b", "worker", "reverse")
            heard = Recorder()
            with pytest.raises(ConnectionFailed) as caught:
                link = await dial(here.a_listens.address, client, hello, A, heard, TIMEOUTS)
                await link.close("let in")
        return str(caught.value)

    assert "dialled back without being asked" in run(scene())


def test_giving_up_leaves_no_request_behind(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path) as here:
            here.broker.silent = True
            connecting = asyncio.create_task(here.connect(nowhere()))
            await here.broker.was_asked.wait()
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
            (ask,) = here.broker.asked
            assert isinstance(ask, AskReverse)
            here.connector.on_answer(NotReached(ask.number, "job-1", 1, "b", "too late"))

    run(scene())

"""Links that this side dials because the peer asked for them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from tests.support.certificates import TestAuthority
from tests.support.links import Recorder

from farflung.connectivity.answerer import MAXIMUM_FOR_ONE_PEER, Answerer
from farflung.errors import ProtocolError
from farflung.protocol.fields import Message
from farflung.protocol.reachability import DialBack, NotReached
from farflung.transport.endpoint import Hello, Link, Peer, listen
from farflung.transport.timeouts import Timeouts


class AnswererOwner(Recorder):
    """Somebody who is dialled for, and may refuse whoever comes."""

    def __init__(self, refuses: str = "") -> None:
        super().__init__()
        self.refuses = refuses
        self.told: list[Message] = []

    @property
    def handler(self) -> Recorder:
        return self

    def expects(self, job: str, attempt: int, peer: str) -> Peer | None:
        return Peer(peer, "worker")

    def accept(self, link: Link) -> Recorder:
        self.order.append("entered")
        if self.refuses:
            raise ProtocolError(self.refuses)
        return self.admit(link)

    def tell(self, message: Message) -> None:
        self.told.append(message)


class Eager(Recorder):
    """Speaks as soon as somebody has dialled it."""

    def admit(self, link: Link) -> Recorder:
        asyncio.get_running_loop().call_soon(link.send_control, b"a claim")
        return super().admit(link)


def dial_back(
    folder: Path, owner: AnswererOwner, asker: Recorder, settled: str, host: str = "127.0.0.1"
) -> None:
    """Let worker `a` dial back to worker `b`, who asked for it; the broker is on this machine."""

    async def scenario() -> None:
        authority, timeouts = TestAuthority(folder), Timeouts()
        own, other = authority.holder("a", "worker"), authority.holder("b", "worker")
        hello = Hello("b", "worker", "data")
        listener = await listen("127.0.0.1:0", other.server, hello, asker.admit, timeouts)
        answerer = Answerer(
            Hello("a", "worker", "data"), own.client, lambda: "127.0.0.1:7700", owner, lambda: timeouts
        )
        answerer.on_request(DialBack(1, "job", 1, "b", [f"{host}:{listener.port}"]), listener)
        await owner.until(lambda: settled in owner.order)
        if owner.refuses:
            await asker.until(lambda: bool(asker.reasons))
        await answerer.close()
        await listener.close()

    asyncio.run(scenario())


def test_a_peer_is_accepted_before_its_first_message_is_handled(tmp_path: Path) -> None:
    owner = AnswererOwner()
    dial_back(tmp_path, owner, Eager(), "control")
    assert owner.order == ["entered", "control"]
    assert owner.links[0].path == "reverse"


@pytest.mark.parametrize("asker", [Recorder, Eager])
def test_a_refused_peer_learns_the_reason(asker: type[Recorder], tmp_path: Path) -> None:
    owner, other = AnswererOwner(refuses="the lobby is full"), asker()
    dial_back(tmp_path, owner, other, "entered")
    assert owner.order == ["entered"]
    assert ["the lobby is full" in reason for reason in other.reasons] == [True]


def test_a_submitter_on_the_brokers_machine_is_dialled_there(tmp_path: Path) -> None:
    owner = AnswererOwner()
    dial_back(tmp_path, owner, Eager(), "control", host="0.0.0.0")
    assert owner.links[0].remote.startswith("127.0.0.1:")


def test_one_peer_cannot_have_more_and_more_addresses_dialled_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        owner, limits = AnswererOwner(), Timeouts()
        context = TestAuthority(tmp_path).holder("a", "worker").client
        answerer = Answerer(Hello("a", "worker", "data"), context, str, owner, lambda: limits)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            for number in range(MAXIMUM_FOR_ONE_PEER + 2):
                answerer.on_request(DialBack(number, "job", 1, "b", [address]), None)  # type: ignore[arg-type]
            answerer.on_request(DialBack(99, "job", 1, "c", [address]), None)  # type: ignore[arg-type]
            declined = [message.number for message in owner.told if isinstance(message, NotReached)]
            assert declined == [MAXIMUM_FOR_ONE_PEER, MAXIMUM_FOR_ONE_PEER + 1]
            await asyncio.sleep(0)
            await answerer.close()

    asyncio.run(scenario())

"""A control link that is lost for a while: what was said meanwhile arrives once, over the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_fleet import BROKER, DEVICE, TIMEOUTS, broker, identity
from tests.support.processes import eventually

from farflung.broker.service import BrokerService
from farflung.protocol import messages
from farflung.protocol.broker_session import BrokerSession
from farflung.protocol.messages import Ask, Moved, Register, Registered, Status
from farflung.transport.endpoint import Handler, Hello, Link, dial
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts

WAIT_SECONDS = 60.0
UNHURRIED = Timeouts(100.0)
"""With which nothing is given up before a busy machine comes to it."""


class Worker:
    """A worker's end of a broker line."""

    def __init__(self, service: BrokerService, own: Identity) -> None:
        self._address = service.address
        self._own = own
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.times_back = 0
        self.seconds_to_dial = 0.0
        self.dialled: list[Link] = []
        self.line = BrokerSession(messages.ToWorker, self, self._dial)

    async def _dial(self, handler: Handler) -> Link:
        hello = Hello(self._own.id, "worker", "control")
        context = self._own.client_context()
        await asyncio.sleep(self.seconds_to_dial)
        self.dialled.append(await dial(self._address, context, hello, BROKER, handler, TIMEOUTS))
        return self.dialled[-1]

    def on_message(self, message: Any) -> None:
        self.heard.put_nowait(message)

    def on_reconnect(self) -> None:
        self.times_back += 1

    def on_disconnect(self, reason: str) -> None:
        self.reason.set_result(reason)

    async def hear(self, kind: type) -> Any:
        async with asyncio.timeout(WAIT_SECONDS):
            while not isinstance(message := await self.heard.get(), kind):
                pass
        return message

    def lose_link(self) -> None:
        """The network fails: this end gives the connection up, and the other is not told for good."""
        self.line.link._end("the cable was cut", "the cable was cut", "network")


def addresses(service: BrokerService) -> tuple[str, ...]:
    return service._dispatcher.state.workers["lab-1"].where.addresses


async def until(holds: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, "what is awaited", holds)


async def registered(service: BrokerService, folder: Path) -> Worker:
    worker = Worker(service, await identity(service, folder, "lab-1", "worker"))
    await worker.line.open()
    worker.line.send(Register(DEVICE, "lab", ["127.0.0.1:7001"], "boot-1"))
    await worker.hear(Registered)
    return worker


def test_what_is_said_while_the_link_is_lost_arrives_once(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = tmp_path / "broker"
        async with broker(folder, UNHURRIED) as service:
            worker = await registered(service, folder)
            for number in range(3):
                worker.lose_link()
                worker.line.send(Moved([f"127.0.0.1:{number + 7002}"]))
                worker.line.send(Ask())
                status: Status = await worker.hear(Status)
                assert status.backup_pool == ["lab-1"]
                await until(lambda n=number: addresses(service) == (f"127.0.0.1:{n + 7002}",))
            assert worker.times_back == 3 and worker.heard.empty()
            await worker.line.close("done")
        assert not worker.reason.done()

    asyncio.run(scene())


def test_a_broker_without_memory_of_a_session_ends_it(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = tmp_path / "broker"
        async with broker(folder, UNHURRIED) as service:
            worker = await registered(service, folder)
            service._connections._sessions.clear()
            worker.lose_link()
            reason = await asyncio.wait_for(worker.reason, WAIT_SECONDS)
            assert reason.startswith("the cable was cut; ") and "does not know this session" in reason
            await worker.line.close("done")

    asyncio.run(scene())


def test_a_link_that_does_not_come_back_is_lost_with_its_cause(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = tmp_path / "broker"
        async with broker(folder, Timeouts(3.0)) as service:
            worker = await registered(service, folder)
            worker._address = "127.0.0.1:1"
            worker.lose_link()
            reason = await asyncio.wait_for(worker.reason, WAIT_SECONDS)
            assert reason == "nothing heard from the broker for 3 s (the cable was cut)"
            await until(lambda: bool(service._dispatcher.state.workers["lab-1"].trouble))
            trouble = service._dispatcher.state.workers["lab-1"].trouble
            assert "nothing heard from worker lab-1 for 3 s" in trouble
            await worker.line.close("done")

    asyncio.run(scene())


def test_a_link_that_was_claimed_in_vain_ends_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        folder = tmp_path / "broker"
        async with broker(folder, UNHURRIED) as service:
            worker = await registered(service, folder)
            monkeypatch.setattr(service._connections, "attach", lambda link, attach: None)
            worker.lose_link()
            await until(lambda: len(worker.dialled) > 1)
            await worker.line.close("enough")
            assert [link.reason for link in worker.dialled[1:]] == ["enough"]

    asyncio.run(scene())


def test_a_broker_that_takes_long_to_dial_is_found_again_within_the_lease(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = tmp_path / "broker"
        async with broker(folder, TIMEOUTS) as service:
            worker = await registered(service, folder)
            worker.seconds_to_dial = 1.2 * TIMEOUTS.redial_seconds
            worker.lose_link()
            await until(lambda: worker.times_back == 1 or worker.reason.done())
            assert not worker.reason.done()
            await worker.line.close("enough")

    asyncio.run(scene())

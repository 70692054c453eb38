"""The submitter's session with a worker over links that are lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.certificates import TestAuthority
from tests.support.client_workers import WELCOME, Told, Worker
from tests.support.links import run, usual_but

from farflung.client.run.broker_client import Lost
from farflung.client.run.worker_session import WorkerSession
from farflung.errors import ConnectionFailed
from farflung.plans import FEEDER
from farflung.protocol.messages import Welcome
from farflung.transport.endpoint import Handler, Hello, Link, Peer, dial, listen
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import SliceHeader, ValueHeader

TIMEOUTS = Timeouts()


def value(microbatch: int, size: int) -> ValueHeader:
    return ValueHeader("job-1", 1, 0, microbatch, FEEDER, 0, 7, False, 0, size)


def answer(microbatch: int) -> ValueHeader:
    return ValueHeader("job-1", 1, 0, microbatch, 0, FEEDER, 7, True, 0, 0)


class Submitter(Told):
    """Feeder, collector, paths and ears of the line under test."""

    def __init__(self, address: str, dial_any: Callable[..., Any], timeouts: Timeouts) -> None:
        super().__init__()
        self.timeouts = timeouts
        self.address = address
        self._dial = dial_any
        self.links: list[Link] = []
        self.sought: list[Sequence[str]] = []
        self.answered: list[int] = []
        self.opened: list[str] = []
        self.collected: list[str] = []
        self.retracted: list[str] = []
        self.lost: list[Lost] = []
        self.buffers: dict[str, bytearray] = {}

    async def connect(self, planned: Any, worker: str, addresses: Sequence[str], handler: Handler) -> Link:
        self.sought.append(addresses)
        self.links.append(await self._dial(self.address, handler))
        return self.links[-1]

    def hear(self, lost: Lost) -> None:
        self.lost.append(lost)
        self.changed.set()

    def finished(self, worker: str, header: ValueHeader) -> None:
        self.answered.append(header.microbatch)
        self.changed.set()

    def opening(self, worker: str, header: SliceHeader) -> memoryview:
        self.opened.append(header.name)
        self.changed.set()
        return memoryview(self.buffers.setdefault(header.name, bytearray(header.bytes)))

    def complete(self, header: SliceHeader) -> None:
        self.collected.append(header.name)
        self.changed.set()

    def retract(self, header: SliceHeader) -> None:
        self.retracted.append(header.name)


class Place:
    """A line to worker b."""

    def __init__(self, line: WorkerSession, submitter: Submitter, worker: Worker) -> None:
        self.line, self.submitter, self.worker = line, submitter, worker

    async def connect(self) -> None:
        planned: Any = SimpleNamespace(job="job-1", attempt=1, addresses={"b": ["b.example:7000"]})
        await self.line.connect(self.submitter, planned)  # type: ignore[arg-type]

    def cut(self, cause: str = "network") -> None:
        """Both ends lose the newest link."""
        for link in (self.submitter.links[-1], self.worker.links[-1]):
            link._end("the cable was cut", "the cable was cut", cause)  # type: ignore[arg-type]


@asynccontextmanager
async def place(folder: Path, timeouts: Timeouts = TIMEOUTS) -> AsyncIterator[Place]:
    authority, worker = TestAuthority(folder), Worker()
    own, other = authority.holder("s", "submitter"), authority.holder("b", "worker")
    listener = await listen(
        "127.0.0.1:0", other.server, Hello("b", "worker", "data"), worker.accept, TIMEOUTS
    )

    async def dialled(address: str, handler: Handler) -> Link:
        hello = Hello("s", "submitter", "data")
        return await dial(address, own.client, hello, Peer("b", "worker"), handler, TIMEOUTS)

    submitter = Submitter(listener.address, dialled, timeouts)
    line = WorkerSession("b", WELCOME, submitter, submitter, submitter.hear)  # type: ignore[arg-type]
    try:
        yield Place(line, submitter, worker)
    finally:
        await line.close("the test is over")
        await listener.close()


def test_what_is_posted_while_the_link_is_lost_comes_once_over_the_next(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path) as here:
            await here.connect()
            for microbatch in range(4):
                here.line.post(value(microbatch, 5), memoryview(b"input"))
                if microbatch % 2:
                    here.cut()
                    here.line.moved([f"elsewhere:{microbatch}"])
            await here.worker.until(lambda: len(here.worker.messages) == 4)
            assert [header for header, _ in here.worker.messages] == [value(number, 5) for number in range(4)]
            assert [(claim.number, claim.previous) for claim in here.worker.claims][:2] == [(1, 0), (2, 1)]
            assert here.submitter.sought[0] == ["b.example:7000"]
            assert here.submitter.sought[-1] == ["elsewhere:3"] and not here.submitter.lost
            assert here.line.bytes_sent >= sum(link.bytes_sent for link in here.submitter.links) > 0

    run(scene())


def test_answers_and_state_of_the_worker_go_to_whom_they_are_for(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path) as here:
            await here.connect()
            assert here.worker.session is not None
            here.worker.session.post(answer(3), memoryview(b""))
            header = SliceHeader("job-1", 1, 0, "weight", 0, 4, 4, bytes(32))
            here.worker.session.post(header, memoryview(b"bits"))
            await here.submitter.until(lambda: here.submitter.collected == ["weight"])
            assert here.submitter.answered == [3] and here.submitter.buffers["weight"] == b"bits"

    run(scene())


def test_a_worker_that_closes_the_link_is_lost_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path) as here:
            await here.connect()
            await here.worker.links[0].close("this worker is shutting down")
            await here.submitter.until(lambda: bool(here.submitter.lost))
            (lost,) = here.submitter.lost
            assert lost.peer == "b" and "this worker is shutting down" in lost.reason
            assert len(here.submitter.links) == 1
            with pytest.raises(ConnectionFailed, match="the session ended"):
                await here.line.send(value(0, 5), memoryview(b"input"))

    run(scene())


def test_a_worker_that_is_not_found_again_is_lost_for_both_reasons(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path, usual_but(resume_seconds=3.0)) as here:
            await here.connect()
            here.submitter.address = "127.0.0.1:1"
            here.cut()
            await here.submitter.until(lambda: bool(here.submitter.lost))
            (lost,) = here.submitter.lost
            assert lost.reason.startswith("the cable was cut; no other link to it within 3 s: 127.0.0.1:1 ")

    run(scene())


def test_a_welcome_that_does_not_come_is_waited_for_and_asked_for_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with place(tmp_path) as here:
            await here.connect()
            here.worker.mute = True
            here.cut()
            await here.worker.until(lambda: len(here.worker.claims) == 2)
            here.worker.mute = False
            here.line.post(value(0, 5), memoryview(b"input"))
            await here.worker.until(lambda: len(here.worker.messages) == 1)
            claims = [(claim.number, claim.previous) for claim in here.worker.claims]
            assert claims == [(1, 0), (2, 1), (3, 1)]
            assert here.submitter.links[1].reason is not None  # superseded

    run(scene())


@pytest.mark.parametrize(
    ("welcome", "refusal", "words"),
    [
        (Welcome("job-9", 1), "", "worker b welcomed job-9"),
        (WELCOME, "the lobby is full", "the lobby is full"),
    ],
)
def test_a_worker_that_does_not_welcome_the_first_link_is_no_worker_of_the_plan(
    welcome: Welcome, refusal: str, words: str, tmp_path: Path
) -> None:
    async def scene() -> None:
        async with place(tmp_path) as here:
            here.worker.welcome, here.worker.refusal = welcome, refusal
            with pytest.raises(ConnectionFailed, match=words):
                await here.connect()

    run(scene())

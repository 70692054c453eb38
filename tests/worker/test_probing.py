"""Workers probe each other over real links, as a broker would ask them to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from tests.support.certificates import TestAuthority
from tests.support.links import nowhere, run, usual_but

from farflung.protocol.fields import Message
from farflung.protocol.probing import SURVEY, EndProbe, Probe, Probed, ProbedPeer, Task
from farflung.protocol.reachability import AskCircuit, AskReverse, DialBack, NotReached
from farflung.transport.endpoint import Handler, Hello, Link, Listener, Peer, dial, listen
from farflung.transport.probing.probe import Prober
from farflung.transport.timeouts import Timeouts
from farflung.worker.linking.probing import Probing

TIMEOUTS = Timeouts(30.0)
WAIT_SECONDS = 60.0
PROBING_SECONDS = 10.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe ends once it knows the path: more time for it only forgives a busy machine."""
    for name in ("SURVEY_PROBE_SECONDS", "PROBE_SECONDS"):
        monkeypatch.setattr(f"farflung.worker.linking.link_probe.{name}", PROBING_SECONDS)


AMessage = TypeVar("AMessage", bound=Message)


@dataclass
class Worker:
    """A worker's port, and what it tells the broker."""

    name: str
    authority: TestAuthority
    timeouts: Timeouts = TIMEOUTS
    is_busy: bool = False
    told: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    links: list[Link] = field(default_factory=list)
    listener: Listener = field(init=False)
    probing: Probing = field(init=False)

    async def start(self) -> None:
        holder = self.authority.holder(self.name, "worker")
        own = Hello(self.name, "worker", "data")
        self.listener = await listen("127.0.0.1:0", holder.server, own, self.accept, TIMEOUTS)
        self.probing = Probing(
            Hello(self.name, "worker", "probe"), holder.client, nowhere, self.port, lambda: self.listener,
            self.told.put_nowait, lambda: self.is_busy, lambda: self.timeouts,
        )  # fmt: skip

    def accept(self, link: Link) -> Handler:
        self.links.append(link)
        return self.probing.dialled_back(link) if link.kind == "reverse" else self.probing.accept(link)

    async def port(self) -> int:
        return self.listener.port

    def ask(self, number: int, task: Task, *peers: Worker, dials: bool = True, address: str = "") -> None:
        """As the broker does."""
        probed = [ProbedPeer(peer.name, [address or peer.listener.address], dials) for peer in peers]
        self.probing.on_message(Probe(number, task, probed, 2**22))

    async def says(self, kind: type[AMessage]) -> AMessage:
        message = await asyncio.wait_for(self.told.get(), WAIT_SECONDS)
        assert isinstance(message, kind), message
        return message


async def eventually(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def over(link: Link) -> str:
    """Why the link has ended, once it has."""
    await eventually(lambda: link.reason)
    return str(link.reason)


@asynccontextmanager
async def workers(folder: Path, *names: str, timeouts: Timeouts = TIMEOUTS) -> AsyncIterator[list[Worker]]:
    authority = TestAuthority(folder)
    found = [Worker(name, authority, timeouts) for name in names]
    for worker in found:
        await worker.start()
    try:
        yield found
    finally:
        for worker in found:
            await worker.probing.close()
            await worker.listener.close()


def test_a_pair_measures_both_directions_and_only_the_dialler_reports_the_path(tmp_path: Path) -> None:
    async def scene() -> list[Probed]:
        async with workers(tmp_path, "a", "b") as (a, b):
            b.ask(7, "pair", a, dials=False)
            a.ask(7, "pair", b)
            return [await a.says(Probed), await b.says(Probed)]

    there, back = run(scene())
    for probed, peer, path in ((there, "b", "direct"), (back, "a", "")):
        (link,) = probed.links
        assert (probed.number, link.peer, link.path, link.problem) == (7, peer, path, "")
        assert link.bandwidth_mbps is not None and link.bandwidth_mbps > 1
        assert link.latency_ms is not None and 0 < link.latency_ms < 1000
        assert 0 < link.bytes_sent <= 2**22


def test_a_worker_may_dial_before_the_other_knows_of_the_probe(tmp_path: Path) -> None:
    async def scene() -> Probed:
        async with workers(tmp_path, "a", "b") as (a, b):
            a.ask(1, "pair", b)
            await eventually(lambda: b.links)
            b.ask(1, "pair", a, dials=False)
            return await b.says(Probed)

    assert not run(scene()).links[0].problem


def test_a_line_is_kept_busy_out_and_in(tmp_path: Path) -> None:
    async def scene() -> list[Probed]:
        async with workers(tmp_path, "a", "b", "c") as (a, b, c):
            found = []
            for number, (task, part) in enumerate((("out", "take"), ("in", "give"))):
                for peer in (b, c):
                    peer.ask(number, part, a, dials=False)  # type: ignore[arg-type]
                a.ask(number, task, b, c)  # type: ignore[arg-type]
                found.append(await a.says(Probed))
                assert [(await peer.says(Probed)).line_mbps for peer in (b, c)] == [None, None]
            return found

    for probed in run(scene()):
        assert probed.line_mbps is not None and probed.line_mbps > 1
        assert [link.peer for link in probed.links] == ["b", "c"]


def test_a_worker_with_a_job_neither_probes_nor_is_probed(tmp_path: Path) -> None:
    async def scene() -> tuple[str, str]:
        async with workers(tmp_path, "a", "b") as (a, b):
            b.is_busy = True
            b.ask(1, "pair", a, dials=False)
            refused = await b.says(Probed)
            a.ask(1, "pair", b)
            asked = await a.says(AskReverse)
            a.probing.on_message(NotReached(asked.number, SURVEY, 1, "b", "it has a job"))
            circuit = await a.says(AskCircuit)
            a.probing.on_message(NotReached(circuit.number, SURVEY, 1, "b", "it has a job"))
            return refused.problem, (await a.says(Probed)).links[0].problem

    problem, words = run(scene())
    assert problem == "it has a job"
    assert "no route to worker b: dialled: " in words and "this worker has a job" in words


def test_a_worker_that_cannot_be_dialled_dials_back(tmp_path: Path) -> None:
    async def scene() -> tuple[Probed, Probed]:
        async with workers(tmp_path, "a", "b") as (a, b):
            b.ask(3, "pair", a, dials=False)
            a.ask(3, "pair", b, address=nowhere())
            asked = await a.says(AskReverse)
            assert (asked.job, asked.attempt, asked.peer) == (SURVEY, 3, "b")
            b.probing.on_message(DialBack(asked.number, SURVEY, 3, "a", [a.listener.address]))
            return await a.says(Probed), await b.says(Probed)

    there, back = run(scene())
    assert there.links[0].path == "reverse" and there.links[0].bandwidth_mbps
    assert back.links[0].bandwidth_mbps


def test_a_worker_dials_back_only_for_its_current_probe(tmp_path: Path) -> None:
    async def scene() -> str:
        async with workers(tmp_path, "a", "b") as (a, b):
            b.probing.on_message(DialBack(1, SURVEY, 3, "a", [a.listener.address]))
            return (await b.says(NotReached)).reason

    assert run(scene()) == "it does not work for that attempt of the job"


def test_an_unrequested_link_does_not_stay(tmp_path: Path) -> None:
    async def scene() -> str:
        async with workers(tmp_path, "b", timeouts=usual_but(probe_dial_seconds=1.0)) as (b,):
            holder = b.authority.holder("a", "worker")
            hello, expected = Hello("a", "worker", "probe"), Peer("b", "worker")
            link = await dial(b.listener.address, holder.client, hello, expected, Prober(), TIMEOUTS)
            return await over(link)

    assert "the broker has not asked for this probe" in run(scene())


def test_a_submitter_may_not_probe(tmp_path: Path) -> None:
    async def scene() -> str:
        async with workers(tmp_path, "b") as (b,):
            holder = b.authority.holder("desk", "submitter")
            hello, expected = Hello("desk", "submitter", "probe"), Peer("b", "worker")
            try:
                link = await dial(b.listener.address, holder.client, hello, expected, Prober(), TIMEOUTS)
            except Exception as error:
                return str(error)
            return await over(link)

    assert "only workers may probe a worker" in run(scene())


def test_a_peer_that_never_comes_is_a_clear_result_in_time(tmp_path: Path) -> None:
    async def scene() -> str:
        async with workers(tmp_path, "a", "b", timeouts=usual_but(probe_link_seconds=0.5)) as (a, b):
            a.ask(1, "pair", b, dials=False)
            return (await a.says(Probed)).links[0].problem

    assert run(scene()) == "could not connect to worker b within 0.5 s"


def test_a_cancelled_or_superseded_probe_is_not_reported(tmp_path: Path) -> None:
    async def scene() -> int:
        async with workers(tmp_path, "a", "b") as (a, b):
            a.ask(1, "pair", b, dials=False)
            a.probing.on_message(EndProbe(1))
            a.ask(2, "pair", b, dials=False)
            b.ask(3, "pair", a)
            a.ask(3, "pair", b, dials=False)
            return (await a.says(Probed)).number

    assert run(scene()) == 3

"""The broker dials what workers claim: little, never for ever, and no worker at another's expense."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from tests.support.broker_fleet import DEVICE

from farflung.broker.core.records import Worker
from farflung.broker.network.verification import (
    MAXIMUM_DIALS,
    MAXIMUM_DIALS_PER_WORKER,
    MAXIMUM_PAUSE_LEASES,
    AddressVerifier,
)
from farflung.broker.network.worker_addresses import WorkerAddresses
from farflung.transport.security.peer import Peer
from farflung.transport.timeouts import Timeouts

SEEN, THERE, ELSEWHERE = "198.41.0.4", "192.33.4.12:22", "199.9.14.201:22"
WAIT_SECONDS = 60.0
QUICK, PATIENT = Timeouts(0.05), Timeouts(1000.0)


class Scene:
    """A prover whose dials are answered here, by a clock that only the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, timeouts: Timeouts = PATIENT) -> None:
        self.now = 0.0
        self.dialled: list[str] = []
        self.under_way: Counter[str] = Counter()
        self.told: list[tuple[str, tuple[str, ...]]] = []
        self.silent: set[str] = set()
        self.prover = AddressVerifier(
            ssl.create_default_context, timeouts, lambda name, _, at: self.told.append((name, at)), self.clock
        )
        monkeypatch.setattr("farflung.broker.network.verification.answers", self._answers)

    def clock(self) -> float:
        return self.now

    async def _answers(self, address: str, _: object, peer: Peer, timeouts: Timeouts) -> bool:
        self.dialled.append(address)
        self.under_way[peer.id] += 1
        if peer.id in self.silent:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        self.under_way[peer.id] -= 1
        return True

    async def verified(self, *workers: Worker) -> list[tuple[str, tuple[str, ...]]]:
        """What is told of these, once what was begun for those who are not silent is over."""
        named = {worker.worker: worker for worker in workers}
        self.prover.update(named)
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.gather(
                *[task for name, task in self.prover._tasks.items() if name not in self.silent]
            )
        self.told.clear()
        self.prover.update(named)
        return self.told


def worker(*claims: str, name: str = "lab", boot: str = "boot", verified: tuple[str, ...] = ()) -> Worker:
    where = WorkerAddresses((), claims, SEEN, verified)
    return Worker(name, DEVICE, "", where, boot, connected=True)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def played() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await scene()

    asyncio.run(played())


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names are asked of a server that does not answer before the test is over."""
    over, asked, real = threading.Event(), [], socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: Any, **keywords: Any) -> Any:
        if not host.endswith(".example"):
            return real(host, *arguments, **keywords)
        asked.append(host)
        over.wait(2 * WAIT_SECONDS)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
    yield asked
    over.set()


def test_names_that_no_server_resolves_hold_up_nothing_else(
    monkeypatch: pytest.MonkeyPatch, no_server: list[str]
) -> None:
    async def play_it() -> None:
        scene = Scene(monkeypatch, QUICK)
        names = [f"{number}.example:7" for number in range(16)]
        assert await scene.verified(worker(*names, THERE)) == [("lab", (THERE,))]
        async with asyncio.timeout(WAIT_SECONDS):  # stored decisions need such a thread
            assert await asyncio.to_thread(lambda: True)
        assert len(no_server) <= 1
        await scene.prover.close()

    play(play_it)


@pytest.mark.parametrize("name", ["a\x00b:7", "\u00df" * 40 + ":7"], ids=["nul", "too long"])
def test_a_name_that_is_none_costs_a_worker_no_other_claim(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play_it() -> None:
        scene = Scene(monkeypatch)
        assert await scene.verified(worker(name, THERE)) == [("lab", (THERE,))]
        await scene.prover.close()

    play(play_it)


def test_a_dial_that_raises_ends_its_siblings_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []

    async def answers(address: str, *_: object) -> bool:
        if address == THERE:
            raise RuntimeError("a mistake")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(address)
        return True

    async def play_it() -> None:
        scene = Scene(monkeypatch)
        monkeypatch.setattr("farflung.broker.network.verification.answers", answers)
        with caplog.at_level(logging.ERROR, "farflung.broker"):
            assert await scene.verified(worker(ELSEWHERE, THERE)) == []
        assert ended == [ELSEWHERE]
        await scene.prover.close()

    play(play_it)
    assert "the addresses of lab could not be verified" in caplog.text


def test_that_nothing_answers_any_more_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> bool:
        return False

    async def play_it() -> None:
        scene = Scene(monkeypatch)
        assert await scene.verified(worker(THERE)) == [("lab", (THERE,))]
        monkeypatch.setattr("farflung.broker.network.verification.answers", nothing)
        scene.now += PATIENT.lease_seconds
        assert await scene.verified(worker(THERE, boot="next", verified=(THERE,))) == [("lab", ())]
        await scene.prover.close()

    play(play_it)


def test_a_worker_that_claims_again_what_was_proved_needs_no_other_dial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play_it() -> None:
        scene = Scene(monkeypatch)
        known = worker(THERE)
        assert await scene.verified(known) == [("lab", (THERE,))]
        assert await scene.verified(worker(ELSEWHERE)) == []
        assert await scene.verified(known) == [("lab", (THERE,))]
        assert await scene.verified(replace(known, where=replace(known.where, verified=(THERE,)))) == []
        assert scene.dialled == [THERE]
        await scene.prover.close()

    play(play_it)


def test_a_worker_that_keeps_changing_what_it_claims_is_heeded_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play_it() -> None:
        scene = Scene(monkeypatch)
        begun = []
        for lease in range(260):
            scene.now = lease * PATIENT.lease_seconds
            before = len(scene.dialled)
            last = scene.dialled[-1:] == [THERE]
            await scene.verified(worker(ELSEWHERE if last else THERE))
            begun += [lease] * (len(scene.dialled) - before)
        assert begun == [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]
        scene.now += 3 * MAXIMUM_PAUSE_LEASES * PATIENT.lease_seconds
        for boot in "ab":
            await scene.verified(worker(THERE, boot=boot))
            scene.now += PATIENT.lease_seconds
        assert len(scene.dialled) == len(begun) + 2  # whoever was quiet is heeded after one lease again
        await scene.prover.close()

    play(play_it)


def test_a_worker_whose_claims_are_slow_to_fail_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play_it() -> None:
        scene = Scene(monkeypatch)
        scene.silent = {"evil", "worse"}
        holes = [f"192.33.4.12:{number}" for number in range(1, MAXIMUM_DIALS + 1)]
        told = await scene.verified(
            worker(*holes, name="evil"), worker(*holes, name="worse"), worker(ELSEWHERE, name="lab")
        )
        assert told == [("lab", (ELSEWHERE,))]
        assert max(scene.under_way.values()) <= MAXIMUM_DIALS_PER_WORKER
        await scene.prover.close()
        assert not scene.prover._tasks

    play(play_it)

"""A worker at an address where another broker is than the one that it joined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.broker_fleet import broker, identity
from tests.support.ports import held_port

from farflung.errors import AnotherAuthority
from farflung.runtime.emulated.backend import EmulatedBackend
from farflung.transport.security.identity import Identity
from farflung.worker.options import WorkerOptions
from farflung.worker.service import WorkerService, run

WAIT_SECONDS = 60.0


def options(identity: Identity) -> WorkerOptions:
    return WorkerOptions(identity, "127.0.0.1:0", 2**30, EmulatedBackend(1.0))


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def test_a_worker_whose_first_broker_is_anothers_ends(tmp_path: Path) -> None:
    async def scene(port: int) -> None:
        async with broker(tmp_path / "own", port=port) as own:
            worker = await identity(own, tmp_path / "own", "one", "worker")
        async with broker(tmp_path / "other", port=port), asyncio.timeout(WAIT_SECONDS):
            with pytest.raises(AnotherAuthority, match="worker one belongs to another broker"):
                await run(options(worker))

    with held_port() as port:
        asyncio.run(scene(port))


def test_a_worker_that_has_met_its_broker_waits_for_it_while_another_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A captive portal, say: it was there before and will be again."""
    caplog.set_level("INFO", "farflung.worker")

    async def scene(port: int) -> None:
        async with broker(tmp_path / "own", port=port) as own:
            worker = WorkerService(options(await identity(own, tmp_path / "own", "one", "worker")))
            await worker.start()
            staying = asyncio.create_task(worker.stay_registered())
            await eventually(lambda: "registered as one" in caplog.text)
        async with broker(tmp_path / "other", port=port):
            await eventually(lambda: "does not know the identity" in caplog.text)
        async with broker(tmp_path / "own", port=port):
            await eventually(lambda: caplog.text.count("registered as one") == 2)
        assert not staying.done()
        staying.cancel()
        await worker.stop("the test is over")

    with held_port() as port:
        asyncio.run(scene(port))

"""A worker's state arrives in slices and from where base weights lie: it is checked once, when whole."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.broker_fleet import broker, identity
from tests.worker.loads import load

from farflung.runtime.emulated.backend import EmulatedBackend
from farflung.transport.wire.headers import SliceHeader
from farflung.worker import events
from farflung.worker.options import WorkerOptions
from farflung.worker.service import WorkerService

BIAS = b"bias"


def test_a_state_that_is_whole_twice_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last slice comes while the end of a fetch is on its way to the event loop."""
    checked: list[object] = []

    def prepare(service: WorkerService, attempt: int) -> None:
        service.driver.state = replace(service.driver.state, load=load(attempt))
        service.driver._prepare(events.Prepare(load(attempt), ()))

    def receive(service: WorkerService, attempt: int) -> None:
        receiver = service.driver._state_receiver
        assert receiver is not None
        receiver.reserve("desk", 1, "weight", bytes(32))
        receiver.fill(1, "weight")
        header = SliceHeader("job-1", attempt, 1, "bias", 0, 4, 4, hashlib.sha256(BIAS).digest())
        intake = service.driver.peers._intake
        memory = intake.opening("desk", header)
        assert memory is not None
        memory[:] = BIAS
        intake.complete("desk", header, memory)
        service.driver._base_filled()

    async def scene() -> None:
        async with broker(tmp_path) as running:
            worker = await identity(running, tmp_path, "b", "worker")
            service = WorkerService(WorkerOptions(worker, "127.0.0.1:0", 2**20, EmulatedBackend(1.0)))
            await service.start()
            monkeypatch.setattr(service.driver.compute, "prepare", lambda *arguments: None)
            monkeypatch.setattr(
                service.driver.compute, "check_state", lambda attempt, _: checked.append(attempt)
            )
            for attempt in (1, 2):
                prepare(service, attempt)
                receive(service, attempt)
            await service.stop("the test is over")

    asyncio.run(scene())
    assert checked == [("job-1", 1), ("job-1", 2)]

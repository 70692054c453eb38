"""The end of a worker's process: what its owner hears meanwhile, and with which outcome it ends."""

from __future__ import annotations

import asyncio
import logging

import pytest

from farflung.errors import RunFailed
from farflung.worker import departure
from farflung.worker.departure import Departure
from farflung.worker.events import Event, Exit, Leave


def test_a_worker_that_waits_says_until_when(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(departure, "REMINDER_SECONDS", 0.001)
    events: list[Event] = []

    async def scene() -> str:
        leaving = Departure(600)
        leaving.attach(events.append, 1.0)
        assert leaving.ask()
        await asyncio.sleep(0.1)
        leaving.end(Exit("it left in good order"))
        return await leaving.wait()

    with caplog.at_level(logging.INFO, "farflung.worker"):
        assert asyncio.run(scene()) == "it left in good order"
    assert "not gone yet" in caplog.text
    assert events == [Leave(600)]


def test_a_worker_that_handed_nothing_over_ends_with_an_error() -> None:
    async def scene() -> str:
        leaving = Departure()
        leaving.end(Exit("it left with its share of job-1", in_order=False))
        return await leaving.wait()

    with pytest.raises(RunFailed, match="without handing over: it left with its share of job-1"):
        asyncio.run(scene())

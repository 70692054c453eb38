"""Viewers get a picture when something has changed, and the newest one if they were slow."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.pages.live.statuses import job, status, worker

from farflung.pages.live.feed import Feed
from farflung.protocol.messages import Status


class Broker:
    """Says what a test tells it to; its time passes by a second at each look."""

    def __init__(self) -> None:
        self.now = 100.0
        self.says = status([job(1)], [worker()])
        self.feed = Feed(self._status, lambda: self.now)

    def _status(self) -> Status:
        return self.says

    def look(self, says: Status) -> None:
        self.now += 1
        self.says = says
        self.feed.look()


def picture(event: bytes) -> Any:
    number, data = event.decode().strip().split("\n")
    assert number.startswith("id: ")
    return json.loads(data.removeprefix("data: "))


def test_the_mere_passing_of_time_is_no_new_picture() -> None:
    async def seen() -> None:
        broker = Broker()
        broker.look(status([job(1)], [worker(age=0.5)], uptime=1.0))
        events = broker.feed.events()
        assert picture(await anext(events))["at"] == 101.0
        broker.look(status([job(1)], [worker(age=1.5)], uptime=2.0))
        waiting = asyncio.create_task(anext(events))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert not waiting.done()
        broker.look(status([job(2)], [worker()], uptime=3.0))
        assert picture(await waiting)["status"]["jobs"][0]["step"] == 2

    asyncio.run(seen())


def test_a_slow_viewer_gets_the_newest_picture_and_a_new_one_what_there_is() -> None:
    async def seen() -> None:
        broker = Broker()
        broker.look(status([job(1)], []))
        slow = broker.feed.events()
        first = await anext(slow)
        for step in (2, 3, 4):
            broker.look(status([job(step)], []))
        assert picture(await anext(slow))["status"]["jobs"][0]["step"] == 4
        back = broker.feed.events(int(first.split(b"\n")[0].removeprefix(b"id: ")))
        assert picture(await anext(back))["status"]["jobs"][0]["step"] == 4
        assert json.loads(broker.feed.curves)["job-1"]["step"] == [1, 2, 3, 4]

    asyncio.run(seen())


def test_a_viewer_of_an_earlier_broker_misses_nothing() -> None:
    """Its last number came from another process."""

    async def seen() -> None:
        earlier, later = Broker(), Broker()
        earlier.look(status([job(1)], []))
        number = int((await anext(earlier.feed.events())).split(b"\n")[0].removeprefix(b"id: "))
        later.now = earlier.now + 60
        feed = Feed(lambda: status([job(7)], []), lambda: later.now)
        feed.look()
        assert picture(await anext(feed.events(number)))["status"]["jobs"][0]["step"] == 7

    asyncio.run(seen())


def test_a_look_that_fails_is_logged_once_and_the_next_one_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("farflung.pages.live.feed.SECONDS", 0.01)

    async def seen() -> None:
        broker = Broker()
        fails = iter([True] * 5)
        monkeypatch.setattr(broker, "_status", lambda: 1 / 0 if next(fails, False) else broker.says)
        monkeypatch.setattr(broker.feed, "_status", lambda: broker._status())
        running = asyncio.create_task(broker.feed.run())
        async with asyncio.timeout(30):
            assert picture(await anext(broker.feed.events()))["status"]["jobs"][0]["step"] == 1
        running.cancel()

    asyncio.run(seen())
    assert len(caplog.records) == 1

"""How far the sending of the state is, where workers have parts of it already."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from tests.localhost.jobs import Chain, Vectors, job

from farflung.client.capture.prepared import Prepared, prepare
from farflung.client.output.progress import Observer
from farflung.client.run.attempt import Attempt
from farflung.client.run.base_transfer import BaseRequests
from farflung.client.run.start import Start
from farflung.client.run.state_sender import StateSender
from farflung.plans import Placement, Plan
from farflung.protocol.messages import Planned, Stalled
from farflung.protocol.sessions import BaseLacking, BaseList
from farflung.transport.timeouts import Timeouts


class Caching:
    """A worker's session; the worker has all base weights but the last one."""

    def __init__(self) -> None:
        self.sent = 0

    def list_base(self, base: BaseList, sizes: Mapping[str, int]) -> BaseRequests:
        requests = BaseRequests("a", base, sizes)
        last = base.pieces[-1]
        requests.answered(BaseLacking(base.job, base.attempt, [(last.segment, last.name)]))
        return requests

    async def send(self, header: Any, buffer: memoryview) -> None:
        self.sent += len(buffer)


class Loading(Observer):
    """Remembers how far loading was said to be."""

    def __init__(self) -> None:
        self.said: list[tuple[int, int]] = []

    def loading(self, sent_bytes: int, total_bytes: int) -> None:
        self.said.append((sent_bytes, total_bytes))


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    model = Chain(layers=3, width=32)
    for layer in model.layers[:2]:
        layer.requires_grad_(False)
    return prepare(job(model=model, data=Vectors(width=32)))


def test_what_a_worker_has_is_not_counted(prepared: Prepared) -> None:
    owned = sorted(prepared.state)
    planned = Planned("j", 1, Plan([Placement(0, ["a"], 1, 1, 1)], [], 2, 2), [owned], {})
    start = Start.fresh(prepared, prepared.training)
    observer, session = Loading(), Caching()
    sender = StateSender(prepared, planned, start, observer)
    asyncio.run(sender.send("a", session))  # type: ignore[arg-type]
    whole = sum(tensor.nbytes for tensor in prepared.state.values())
    assert sender.base_bytes.cached and session.sent == whole - sender.base_bytes.cached
    assert observer.said[-1] == (session.sent, session.sent)
    assert all(sent <= session.sent for sent, _ in observer.said)


class Stuck(Caching):
    """A worker that takes nothing until `takes` is set, and then fetches its base weights elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.is_sent, self.takes = asyncio.Event(), asyncio.Event()

    def list_base(self, base: BaseList, sizes: Mapping[str, int]) -> BaseRequests:
        self.requests = BaseRequests("a", base, sizes)
        return self.requests

    async def send(self, header: Any, buffer: memoryview) -> None:
        self.is_sent.set()
        await self.takes.wait()


def planned_on_one(prepared: Prepared, attempt: int = 1) -> Planned:
    plan = Plan([Placement(0, ["a"], 1, 1, 1)], [], 2, 2)
    return Planned("j", attempt, plan, [sorted(prepared.state)], {})


def test_a_worker_owes_progress_while_it_is_sent_something_and_once_it_has_all_but_not_while_it_fetches(
    prepared: Prepared,
) -> None:
    start = Start.fresh(prepared, prepared.training)
    sender = StateSender(prepared, planned_on_one(prepared), start, Observer())

    async def test() -> None:
        session = Stuck()
        sending = asyncio.create_task(sender.send("a", session))  # type: ignore[arg-type]
        await session.is_sent.wait()
        assert sender.owing == {"a"}
        session.takes.set()
        async with asyncio.timeout(60.0):
            while sender.owing:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        session.requests.answered(BaseLacking("j", 1, [], last=True))
        await sending
        assert sender.owing == {"a"}

    asyncio.run(test())


def test_who_gets_no_further_is_said_until_the_attempt_runs(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start.fresh(prepared, prepared.training)
    attempt = Attempt(prepared, planned_on_one(prepared, 2), start, False, Observer(), lambda lost: None)
    attempt._sessions["a"] = SimpleNamespace(bytes_sent=10)  # type: ignore[assignment]
    attempt._sender.owing.add("a")
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr("farflung.client.run.attempt.time", SimpleNamespace(monotonic=lambda: next(clock)))
    said: list[Stalled] = []

    def say(message: Stalled) -> None:
        said.append(message)
        attempt.is_fed = len(said) == 2

    timeouts = Timeouts(0.5)
    monkeypatch.setattr("asyncio.sleep", AsyncMock())
    asyncio.run(attempt.watch_loading(timeouts, say))
    assert [(one.job, one.attempt, one.seconds) for one in said] == [("j", 2, {"a": 15}), ("j", 2, {"a": 20})]

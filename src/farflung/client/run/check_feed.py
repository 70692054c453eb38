"""The submitter's part in a check: a link to the worker that runs a share again, and the inputs for that."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from farflung.client.capture.prepared import Prepared
from farflung.client.output.progress import Observer
from farflung.client.run.feeder import Feeder
from farflung.client.run.microbatches import Microbatches
from farflung.client.run.start import Start
from farflung.client.run.state_collector import StateCollectors
from farflung.client.run.state_sender import StateSender
from farflung.client.run.worker_session import WorkerRoutes, WorkerSession
from farflung.errors import FarflungError, ProtocolError
from farflung.protocol.messages import FeedCheck, Planned, Welcome


class CheckFeed:
    """One check, beside the attempt that was `planned` and began with the state `start`.

    Whatever goes wrong ends the check alone: its worker notices by the link.
    """

    def __init__(
        self,
        prepared: Prepared,
        planned: Planned,
        check: FeedCheck,
        start: Start,
        collectors: StateCollectors,
        routes: WorkerRoutes,
    ) -> None:
        assert check.checker is not None and check.plan is not None
        self._check, self._checker = check, check.checker
        self._planned = msgspec.structs.replace(
            planned, plan=check.plan, addresses={check.checker: check.addresses}
        )
        self._prepared, self._start = prepared, start
        links: dict[str, WorkerSession] = {}
        self._feeder = Feeder(planned.job, planned.attempt, check.plan, prepared.graph, links)
        welcome = Welcome(planned.job, planned.attempt)
        self._session = WorkerSession(
            check.checker, welcome, self._feeder, collectors, lambda lost: None, self._pulled
        )
        links[check.checker] = self._session
        self._fed: set[int] = set()
        self._reading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin(self._load(routes))

    async def close(self) -> None:
        """End the check, and close its link."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close("the check is over")

    async def _load(self, routes: WorkerRoutes) -> None:
        with suppress(FarflungError):
            await self._session.connect(routes, self._planned)
            if self._check.start and self._start.unit == self._check.first:
                # Nothing is said of its progress: the run goes on meanwhile.
                sender = StateSender(self._prepared, self._planned, self._start, Observer())
                await sender.send(self._checker, self._session)

    def _pulled(self, worker: str, unit: int) -> None:
        if not self._check.first <= unit < self._check.over:
            raise ProtocolError(
                f"worker {worker} asks for the inputs of unit {unit}, which it does not check"
            )
        if unit in self._fed:
            raise ProtocolError(f"worker {worker} asks for the inputs of unit {unit} twice")
        self._fed.add(unit)
        self._begin(self._feed(unit))

    async def _feed(self, number: int) -> None:
        evaluated = self._planned.validation_microbatches
        microbatches = Microbatches(self._prepared.job, self._prepared.graph, evaluated)
        try:
            async with self._reading, aclosing(microbatches.stream(number, last=number)) as stream:
                async for microbatch in stream:
                    self._feeder.feed_again(self._checker, microbatch)
        except FarflungError as error:
            await self._session.close(str(error))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

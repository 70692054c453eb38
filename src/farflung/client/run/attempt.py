"""One attempt of a job as the submitter sees it: sessions with all workers, and what flows over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from farflung.client.capture.prepared import Prepared
from farflung.client.output.progress import Observer
from farflung.client.run.broker_client import Lost
from farflung.client.run.feeder import Feeder
from farflung.client.run.microbatches import Microbatches
from farflung.client.run.state_transfer import StateCollector, send_state
from farflung.client.run.worker_session import WorkerRoutes, WorkerSession
from farflung.errors import ConnectionFailed
from farflung.opdag.analysis import changed_by_training
from farflung.protocol.messages import Planned, Welcome
from farflung.runtime.state import StateKey

if TYPE_CHECKING:
    from torch import Tensor


class Attempt:
    """Dials the workers of a plan, loads them, feeds them and collects the trained state.

    `hear` is called when a link is lost, until `close`.
    """

    def __init__(
        self, prepared: Prepared, planned: Planned, observer: Observer, hear: Callable[[Lost], None]
    ) -> None:
        self._prepared = prepared
        self.planned = planned
        self._observer = observer
        self._hear = hear
        self._sessions: dict[str, WorkerSession] = {}
        self._connected: set[str] = set()
        self._linked = asyncio.Event()
        self._feeder = Feeder(
            planned.job, planned.attempt, planned.plan, prepared.graph, self._sessions, observer.working
        )
        changed = changed_by_training(prepared.graph)
        coming = [[name for name in names if name in changed] for names in planned.owned]
        self._state = _ByKey(prepared.state)
        self._collector = StateCollector(
            planned.job, planned.attempt, planned.plan, coming, self._state, observer.collecting
        )

    @property
    def bytes_sent(self) -> int:
        """Bytes sent over data links so far, including framing."""
        return sum(session.bytes_sent for session in self._sessions.values())

    async def load(self, routes: WorkerRoutes) -> None:
        """Dial every worker, and send each one the parameters and buffers that its segments own.

        Raises
        ------
        ConnectionFailed
            A worker cannot be reached. A worker that is lost later is reported to `hear`.
        """
        progress = _Progress(self._observer, self._total_bytes())
        async with asyncio.TaskGroup() as group:
            for worker in self.planned.plan.workers():
                group.create_task(self._load_worker(worker, routes, progress))

    async def feed(self) -> None:
        """Stream every microbatch of the job; see `Feeder.run`."""
        await self._linked.wait()  # a worker without state can be ready before its welcome comes
        async with aclosing(Microbatches(self._prepared.job, self._prepared.graph).stream()) as stream:
            await self._feeder.run(stream)

    def moved(self, worker: str, addresses: Sequence[str]) -> None:
        """Use new addresses for a worker from now on."""
        if session := self._sessions.get(worker):
            session.moved(addresses)

    async def trained_state(self) -> dict[str, Tensor]:
        """Wait for the tensors that training changed; returns all owned ones. See `StateCollector.state`."""
        trained = {key.name: tensor for key, tensor in (await self._collector.state()).items()}
        kept = {name for names in self.planned.owned for name in names} - trained.keys()
        return trained | {name: self._prepared.state[name] for name in kept}

    async def close(self, reason: str) -> None:
        """Close every link."""
        await asyncio.gather(*(session.close(reason) for session in self._sessions.values()))

    async def _load_worker(self, worker: str, routes: WorkerRoutes, progress: _Progress) -> None:
        planned = self.planned
        welcome = Welcome(planned.job, planned.attempt)
        session = WorkerSession(worker, welcome, self._feeder, self._collector, self._hear)
        self._sessions[worker] = session
        await session.connect(routes, planned)
        self._connected.add(worker)
        if len(self._connected) == len(planned.plan.workers()):
            self._linked.set()
        segments = {segment: planned.owned[segment] for segment in planned.plan.segments_of(worker)}
        with suppress(ConnectionFailed):  # the lost link has been reported
            await send_state(planned.job, planned.attempt, segments, self._state, session, progress.add)

    def _total_bytes(self) -> int:
        return sum(self._prepared.state[name].nbytes for names in self.planned.owned for name in names)


class _ByKey(Mapping[StateKey, "Tensor"]):
    """Parameters and buffers by their keys; each is read on access."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state

    def __getitem__(self, key: StateKey) -> Tensor:
        return self._state[key.name]

    def __iter__(self) -> Iterator[StateKey]:
        return map(StateKey, self._state)

    def __len__(self) -> int:
        return len(self._state)


class _Progress:
    """Adds up the bytes that were sent to all workers."""

    def __init__(self, observer: Observer, total: int) -> None:
        self._observer = observer
        self._total = total
        self._sent = 0

    def add(self, size: int) -> None:
        self._sent += size
        self._observer.loading(self._sent, self._total)

"""One attempt of a job as the submitter sees it: sessions with all workers, and what flows over them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

from farflung.client.capture.prepared import Prepared
from farflung.client.output.progress import Observer
from farflung.client.output.records import BaseBytes
from farflung.client.run.broker_client import Lost
from farflung.client.run.check_feed import CheckFeed
from farflung.client.run.feeder import Feeder
from farflung.client.run.microbatches import DataWaits, Microbatch, Microbatches
from farflung.client.run.start import Start, first_segments
from farflung.client.run.state_collector import ReceivedState, StateCollector, StateCollectors, with_slots
from farflung.client.run.state_sender import LoadingWatch, StateSender
from farflung.client.run.worker_session import WorkerRoutes, WorkerSession
from farflung.errors import ConnectionFailed, FarflungError, ProtocolError, RunFailed
from farflung.opdag.analysis import changed_by_training
from farflung.opdag.form import Form
from farflung.protocol.messages import FeedCheck, Planned, Stalled, Welcome
from farflung.runtime.state import StateKey
from farflung.transport.timeouts import Timeouts


class Attempt:
    """Dials the workers of a plan, loads them, feeds them and collects the trained state.

    `start` is the state with which it begins, unless the workers keep what they hold; with `whole` the state
    at the end has optimizer slots and coders. `hear` is called when a link is lost, until `close`.
    """

    def __init__(
        self,
        prepared: Prepared,
        planned: Planned,
        start: Start,
        whole: bool,
        observer: Observer,
        hear: Callable[[Lost], None],
    ) -> None:
        self._prepared = prepared
        self.planned = planned
        self._start = start
        self._observer = observer
        self._hear = hear
        self._sessions: dict[str, WorkerSession] = {}
        self._connected: set[str] = set()
        self._loading_again: set[asyncio.Task[None]] = set()
        self._linked = asyncio.Event()
        self._check: CheckFeed | None = None
        self._sender = StateSender(prepared, planned, start, observer)
        self.is_fed = False
        self._feeder = Feeder(
            planned.job, planned.attempt, planned.plan, prepared.graph, self._sessions, observer.working
        )
        end = self._collector(whole, observer.collecting)
        self._collectors = StateCollectors(end, lambda: self._collector(True, lambda received, total: None))

    @property
    def is_linked(self) -> bool:
        """Whether every worker of the plan has been reached."""
        return self._linked.is_set()

    @property
    def bytes_sent(self) -> int:
        """Bytes sent over data links so far, including framing."""
        return sum(session.bytes_sent for session in self._sessions.values())

    @property
    def base_bytes(self) -> BaseBytes:
        """Where the base weights of the workers came from that have them all."""
        return self._sender.base_bytes

    async def load(self, routes: WorkerRoutes) -> None:
        """Dial every worker, and send each one the parameters and buffers that its segments own.

        Workers that keep their state get none.

        Raises
        ------
        ConnectionFailed
            A worker cannot be reached. A worker that is lost later is reported to `hear`.
        """
        async with asyncio.TaskGroup() as group:
            for worker in self.planned.plan.workers():
                group.create_task(self._load_worker(worker, routes))

    async def watch_loading(self, timeouts: Timeouts, say: Callable[[Stalled], None]) -> None:
        """Say which workers get no further, as long as the attempt loads."""
        planned, watch = self.planned, LoadingWatch()
        while not self.is_fed:
            await asyncio.sleep(timeouts.lease_seconds)
            sent = {worker: session.bytes_sent for worker, session in self._sessions.items()}
            seconds = watch.look(time.monotonic(), sent, self._sender.owing)
            if max(seconds.values(), default=0.0) >= timeouts.patience_seconds:
                say(Stalled(planned.job, planned.attempt, {name: int(one) for name, one in seconds.items()}))

    async def feed(self) -> None:
        """Stream every microbatch of the job; see `Feeder.run`."""
        await self._linked.wait()  # a worker without state can be ready before its welcome comes
        microbatches = self._microbatches()
        first = self.planned.unit if self.planned.keeps else self._start.unit
        waits = DataWaits()
        async with aclosing(microbatches.stream(first, waits)) as stream:
            await self._feeder.run(self._watched(stream, waits))

    def _microbatches(self) -> Microbatches:
        """Those of the job, whose evaluations the broker may have made smaller."""
        return Microbatches(self._prepared.job, self._prepared.graph, self.planned.validation_microbatches)

    async def _watched(
        self, stream: AsyncGenerator[Microbatch, None], waits: DataWaits
    ) -> AsyncGenerator[Microbatch, None]:
        """The stream as it is; a data set that is too slow is named."""
        async for microbatch in stream:
            if words := waits.bottleneck(self._prepared.job.readers):
                self._observer.warned(words)
            yield microbatch

    def _feed_again(self, worker: str, unit: int) -> None:
        """Send the inputs of a past unit again to a worker that runs it again.

        Raises
        ------
        ProtocolError
            That worker does not run that unit again.
        """
        planned = self.planned
        if worker not in planned.replayers or not planned.replay_from <= unit < planned.unit:
            raise ProtocolError(
                f"worker {worker} asks for the inputs of unit {unit}, which it does not run again"
            )
        task = asyncio.create_task(self._load_again(worker, unit))
        self._loading_again.add(task)
        task.add_done_callback(self._loading_again.discard)

    async def _load_again(self, worker: str, number: int) -> None:
        microbatches = self._microbatches()
        try:
            async with aclosing(microbatches.stream(number, last=number)) as stream:
                async for microbatch in stream:
                    self._feeder.feed_again(worker, microbatch)
        except FarflungError as error:
            self._hear(Lost(worker, str(error)))

    def moved(self, worker: str, addresses: Sequence[str]) -> None:
        """Use new addresses for a worker from now on."""
        if session := self._sessions.get(worker):
            session.moved(addresses)

    async def check(self, message: FeedCheck, routes: WorkerRoutes) -> None:
        """Link to a worker that checks a share of another, beside the attempt; or end that."""
        before, self._check = self._check, None
        if before is not None:
            await before.close()
        if message.checker is not None:
            self._check = CheckFeed(
                self._prepared, self.planned, message, self._start, self._collectors, routes
            )

    async def trained_state(self, updated: bool) -> ReceivedState:
        """Wait for the state at the end; returns it as `_completed`. See `StateCollector.state`."""
        return self._completed(await self._collectors.end.state(updated))

    async def copied_state(self, unit: int) -> ReceivedState:
        """Wait for the whole copy of the state after `unit`; returns it as `_completed`."""
        try:
            received = await self._collectors.copy(unit).state()
        except RunFailed:
            self._collectors.drop(unit)
            raise
        self._collectors.drop(unit)  # not if this is cancelled: the rest of the copy still comes
        return self._completed(received)

    async def close(self, reason: str) -> None:
        """Close every link."""
        for task in self._loading_again:
            task.cancel()
        if self._check is not None:
            await self._check.close()
        await asyncio.gather(*(session.close(reason) for session in self._sessions.values()))

    async def _load_worker(self, worker: str, routes: WorkerRoutes) -> None:
        planned = self.planned
        welcome = Welcome(planned.job, planned.attempt)
        session = WorkerSession(worker, welcome, self._feeder, self._collectors, self._hear, self._feed_again)
        self._sessions[worker] = session
        await session.connect(routes, planned)
        self._connected.add(worker)
        if len(self._connected) == len(planned.plan.workers()):
            self._linked.set()
        if planned.keeps:
            return
        with suppress(ConnectionFailed):  # the lost link has been reported
            await self._sender.send(worker, session)

    @property
    def _has_coders(self) -> bool:
        return bool(self._start.training.codecs)

    def _collector(self, whole: bool, progress: Callable[[int, int], None]) -> StateCollector:
        """A collector for one version of the state, if `whole` with optimizer slots and coders."""
        planned, training, graph = self.planned, self._start.training, self._prepared.graph
        changed = changed_by_training(graph)
        entries = [e for e in graph.inputs if e.name in changed]
        batch = training.microbatch_size
        forms = {e.name: Form.of(graph.values[e.value], batch) for e in entries}
        trained = {e.name for e in entries if e.trainable and whole}
        expected = [
            with_slots(
                {name: forms[name] for name in owned if name in forms},
                trained.intersection(owned),
                training.optimizer,
            )
            if planned.plan.pipeline_of(segment) == planned.plan.home_pipeline  # all have the same parameters
            else {}
            for segment, owned in enumerate(planned.owned)
        ]
        coders = first_segments(planned.plan) if whole and self._has_coders else []
        return StateCollector(planned.job, planned.attempt, planned.plan, expected, progress, coders)

    def _completed(self, received: ReceivedState) -> ReceivedState:
        """The received state, with the tensors that no step changes unless the job has a base of them."""
        if self._prepared.has_base:
            return received
        kept = {
            key: self._start.state[key]
            for names in self.planned.owned
            for key in map(StateKey, names)
            if key not in received.tensors
        }
        return ReceivedState(kept | received.tensors, received.coders)

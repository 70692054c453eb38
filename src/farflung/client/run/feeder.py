"""The feeder streams model inputs to the segments that read them, at most as far ahead as the plan allows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from farflung.client.run.microbatches import Microbatch
from farflung.errors import ProtocolError
from farflung.opdag.graph import Graph
from farflung.plans import FEEDER, Edge, Plan
from farflung.schedule import Feeding, Unit
from farflung.transport.wire.headers import DENSE, DataHeader, ValueHeader

if TYPE_CHECKING:
    from torch import Tensor


class Outgoing(Protocol):
    """The part of a link that the feeder uses."""

    def post(self, header: DataHeader, buffer: memoryview) -> object:
        """Queue a message; the buffer stays unchanged until it has left."""


class Feeder:
    """Sends each microbatch's inputs along the plan's feeder edges, in the order of the job's units.

    A segment has at most twice its window of fed microbatches that it has not finished. It reports a
    finished one with an empty gradient for each value that it was fed. `tell` is called with the number of
    microbatches of a unit that the first fed segment of their pipeline has finished.
    """

    def __init__(
        self,
        job: str,
        attempt: int,
        plan: Plan,
        graph: Graph,
        links: Mapping[str, Outgoing],
        tell: Callable[[Unit, int], None] = lambda unit, microbatches: None,
    ) -> None:
        self._tell = tell
        self._job = job
        self._attempt = attempt
        self._plan = plan
        self._links = links
        self._names = {entry.value: entry.name for entry in graph.inputs_of("input")}
        self._targets: dict[int, list[Edge]] = {}
        for edge in plan.edges:
            if edge.source == FEEDER:
                self._targets.setdefault(edge.target, []).append(edge)
        by_pipeline: dict[int, list[int]] = {}
        for segment in self._targets:
            by_pipeline.setdefault(plan.pipeline_of(segment), []).append(segment)
        self._feedings = {
            at: Feeding(segments, plan.window_of(segments[0])) for at, segments in by_pipeline.items()
        }
        self._first = {min(segments) for segments in by_pipeline.values()}
        self._has_room = asyncio.Event()
        self._unfinished: dict[tuple[int, int, int], set[int]] = {}
        self._units: dict[int, Unit] = {}  # fed, and not finished by the first segment that is fed
        self._finished: Counter[int] = Counter()

    async def run(self, microbatches: AsyncIterator[Microbatch]) -> None:
        """Feed every microbatch; returns when the last one has been passed to its links.

        Raises
        ------
        JobError
            A microbatch could not be loaded.
        """
        async for microbatch in microbatches:
            self._units[microbatch.unit.number] = microbatch.unit
            for segment, edges in self._targets.items():
                if not self._runs(segment, microbatch):
                    continue
                feeding = self._feedings[self._plan.pipeline_of(segment)]
                await self._turn(feeding)
                feeding.fed()
                key = (segment, microbatch.unit.number, microbatch.number)
                self._unfinished[key] = {edge.value for edge in edges}
                for edge in edges:
                    self._post(microbatch, edge)

    def feed_again(self, worker: str, microbatch: Microbatch) -> None:
        """Send a microbatch of a past unit to the segments of `worker`, which runs it again alone."""
        for edge in self._plan.edges:
            is_theirs = edge.source == FEEDER and self._plan.worker_of(edge.target) == worker
            if is_theirs and self._runs(edge.target, microbatch):
                self._post(microbatch, edge)

    def finished(self, worker: str, header: ValueHeader) -> None:
        """Handle the empty gradient with which `worker` reports that it is done with a fed value.

        Raises
        ------
        ProtocolError
            The worker was not fed that value, reported it before, or the message is not an empty gradient.
        """
        key = (header.source, header.unit, header.microbatch)
        waiting = self._unfinished.get(key, set())
        ours = (header.job, header.attempt) == (self._job, self._attempt)
        fits = ours and header.gradient and header.target == FEEDER and header.bytes == 0
        if not fits or header.value not in waiting or self._plan.worker_of(header.source) != worker:
            raise ProtocolError(
                f"worker {worker} answered for value {header.value} of microbatch {header.microbatch}, unit"
                f" {header.unit}, segment {header.source}, which it was not fed or has answered for before"
            )
        waiting.remove(header.value)
        if not waiting:
            del self._unfinished[key]
            self._feedings[self._plan.pipeline_of(header.source)].finished(header.source)
            self._has_room.set()
            if header.source in self._first:
                self._count(header.unit)

    def _runs(self, segment: int, microbatch: Microbatch) -> bool:
        unit = microbatch.unit
        return microbatch.number in self._plan.microbatches_of(segment, unit.microbatches, unit.alone)

    async def _turn(self, feeding: Feeding) -> None:
        """Wait until the next segment to feed has room."""
        while feeding.next() is None:
            self._has_room.clear()
            await self._has_room.wait()

    def _count(self, number: int) -> None:
        unit = self._units[number]
        self._finished[number] += 1
        self._tell(unit, self._finished[number])
        if self._finished[number] == unit.microbatches:
            del self._units[number], self._finished[number]

    def _post(self, microbatch: Microbatch, edge: Edge) -> None:
        buffer = _bytes_of(microbatch.tensors[self._names[edge.value]])
        header = ValueHeader(
            job=self._job,
            attempt=self._attempt,
            unit=microbatch.unit.number,
            microbatch=microbatch.number,
            source=FEEDER,
            target=edge.target,
            value=edge.value,
            gradient=False,
            codec=DENSE,
            bytes=len(buffer),
            bucket=microbatch.bucket,
        )
        self._links[self._plan.worker_of(edge.target)].post(header, buffer)


def _bytes_of(tensor: Tensor) -> memoryview:
    from farflung.runtime.torch_backend.tensors import memory

    return memory(tensor)

"""A cut model on any mixture of backends in one process: executors and codecs as on workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from farflung.opdag.form import Form
from farflung.opdag.graph import Graph
from farflung.opdag.segment import Segment
from farflung.plans import FEEDER, Plan
from farflung.runtime.backend import AnyBackend
from farflung.runtime.executor import Executor, SegmentShare
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.torch_backend.tensors import memory
from farflung.runtime.training import Training
from farflung.schedule import Unit


class _Worker:
    """One executor, and what it has to say, as bytes."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        segments: Sequence[Segment],
        state: Mapping[str, Tensor],
        training: Training,
        backend: AnyBackend,
        recompute: bool,
    ) -> None:
        self._backend = backend
        is_coded = bool(training.codecs) or backend.overlaps
        self._coding = backend.coding(name, plan, training, segments) if is_coded else None
        self._batch = training.microbatch_size
        arrays: dict[str, Any] = {}
        self.runners: dict[int, Any] = {}
        for segment in segments:
            backend.verify(segment, self._batch)
            for entry in segment.inputs:
                if entry.kind in ("parameter", "buffer") and entry.name not in arrays:
                    arrays[entry.name] = self._array(state[entry.name], segment.values[entry.value])
            self.runners[segment.number] = backend.runner(segment, arrays, training, recompute)
        self._executor = Executor(plan, self.runners, training, self)
        self._posted: list[Parcel[Any]] = []
        self.shares: list[SegmentShare] | None = None
        self.run_next = self._executor.run_next

    def _array(self, tensor: Tensor, stated: Any) -> Any:
        """A copy, in memory that the backend gave."""
        size = tensor.numel() * tensor.element_size()
        buffer = self._backend.allocate(size) if size else memoryview(bytearray())
        if size:
            buffer[:] = memory(tensor.contiguous())
        return self._backend.array(buffer, Form.of(stated, self._batch))

    def decide(self, unit: int, scale: float) -> None:
        self._executor.decide(unit, scale)
        if self._coding is not None:
            self._coding.decided(unit)

    def receive(self, parcel: Parcel[Coded]) -> None:
        array = None
        if self._coding is not None:
            read = self._coding.decode(self._copied(parcel), self._backend.allocate).payload
        else:
            coded = self._copied(parcel).payload
            read = None if coded is None else coded.data
        if read is not None or not parcel.gradient:
            stated = self.runners[parcel.target].segment.values[parcel.value]
            received = memoryview(bytearray()) if read is None else read
            array = self._backend.enter(received, Form.of(stated, self._batch))
        self._executor.receive(parcel.carrying(array))

    def _copied(self, parcel: Parcel[Coded]) -> Parcel[Coded]:
        """The parcel as it arrives, in memory that the backend gave."""
        if parcel.payload is None or not len(parcel.payload.data):
            return parcel
        buffer = self._backend.allocate(len(parcel.payload.data))
        buffer[:] = parcel.payload.data
        return parcel.carrying(parcel.payload._replace(data=buffer))

    def send(self, parcel: Parcel[Any]) -> None:
        leave = self._backend.memory if self._coding is None else self._backend.leave
        self._posted.append(parcel.carrying(None if parcel.payload is None else leave(parcel.payload)))

    def take_posted(self) -> list[Parcel[Coded]]:
        """What it has to say since the last call, written after the tasks, as by a codec thread."""
        posted, self._posted = self._posted, []
        if self._coding is not None:
            return [self._coding.encode(parcel) for parcel in posted]
        dense = [None if parcel.payload is None else Coded(0, parcel.payload) for parcel in posted]
        return [parcel.carrying(data) for parcel, data in zip(posted, dense, strict=True)]

    def ready(self, unit: Unit, shares: list[SegmentShare]) -> None:
        self.shares = shares


class Pipeline:
    """Runs units of a plan; `backends` names what each worker of the plan computes with."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        segments: Sequence[Segment],
        state: Mapping[str, Tensor],
        training: Training,
        backends: Sequence[AnyBackend],
        recompute: bool = False,
    ) -> None:
        self._plan = plan
        self._names = {entry.value: entry.name for entry in graph.inputs_of("input")}
        self._workers = {}
        for at, worker in enumerate(plan.workers()):
            mine = [s for s in segments if s.number in plan.segments_of(worker)]
            backend = backends[at % len(backends)]
            self._workers[worker] = _Worker(worker, plan, mine, state, training, backend, recompute)

    def run(self, unit: int, microbatches: Sequence[Mapping[str, Tensor]]) -> list[SegmentShare]:
        """Run one unit up to *ready*; returns the shares in segment order. `decide` must follow."""
        for number, batch in enumerate(microbatches):
            for edge in self._plan.edges:
                if edge.source == FEEDER:
                    payload = Coded(0, memory(batch[self._names[edge.value]].contiguous()))
                    parcel = Parcel(unit, number, FEEDER, edge.target, edge.value, False, payload)
                    self._workers[self._plan.worker_of(edge.target)].receive(parcel)
        while any(worker.shares is None for worker in self._workers.values()):
            ran = [worker.run_next() for worker in self._workers.values()]
            waiting = any(worker.shares is None for worker in self._workers.values())
            assert self._deliver() or any(ran) or not waiting, "nothing can run"
        return sorted(s for worker in self._workers.values() for s in worker.shares or ())

    def decide(self, unit: int, scale: float) -> None:
        """Apply the unit's gradients times `scale` everywhere."""
        for worker in self._workers.values():
            worker.decide(unit, scale)
            worker.shares = None

    def runners(self) -> list[Any]:
        """Every segment's runner."""
        return [runner for worker in self._workers.values() for runner in worker.runners.values()]

    def _deliver(self) -> bool:
        delivered = False
        for worker in self._workers.values():
            for parcel in worker.take_posted():
                delivered = True
                if parcel.target != FEEDER:
                    self._workers[self._plan.worker_of(parcel.target)].receive(parcel)
        return delivered

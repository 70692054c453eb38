"""The compute thread: it alone touches autograd, generators, tapes, parameters and optimizers.

It and the event loop meet in two queues: calls that the loop posts here, and outcomes that this thread hands
to `emit` (which must be thread-safe).
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from farflung.errors import FarflungError, GraphError
from farflung.opdag import wire
from farflung.opdag.segment import Segment
from farflung.plan import FEEDER
from farflung.protocol.messages import Load, Share
from farflung.runtime.executor import Executor, Parcel, SegmentShare
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.runtime.torch_backend.tensors import DTYPES, empty, memory
from farflung.runtime.torch_backend.verify import required_bytes, verify_segment
from farflung.schedule import Unit
from farflung.worker.intake import Intake
from farflung.worker.state import Attempt, ComputeFailed, Filled, UnitFinished, Verified


@dataclass(frozen=True)
class Outgoing:
    """A parcel for another worker or the feeder."""

    attempt: Attempt
    parcel: Parcel


@dataclass(frozen=True)
class OutgoingState:
    """One owned tensor for the submitter: a copy, so that it stays as it is until it is sent."""

    attempt: Attempt
    segment: int
    name: str
    tensor: Tensor
    sha256: bytes


@dataclass(frozen=True)
class StateGiven:
    """Every owned tensor has been handed out as `OutgoingState`."""

    attempt: Attempt


Outcome = Outgoing | OutgoingState | StateGiven | Verified | Filled | UnitFinished | ComputeFailed
Emit = Callable[[Outcome], None]


class _Job:
    """Segments and executor of one attempt, as `Executor`'s outlet."""

    def __init__(self, worker: str, load: Load, intake: Intake, memory_bytes: int, emit: Emit) -> None:
        self._attempt = (load.job, load.attempt)
        self._emit = emit
        self._batch = batch = load.training.microbatch_size
        mine = load.plan.segments_of(worker)
        programs = {p.segment: p for p in load.programs}
        if set(mine) - set(programs):
            raise GraphError("a segment of the plan has no program")
        segments = {n: wire.load_segment(programs[n].program, batch) for n in mine}
        for number, segment in segments.items():
            if segment.number != number:
                raise GraphError(f"the program of segment {number} says it is {segment.number}")
            verify_segment(segment, batch)
            check_edges(load, segment)
        needed = sum(required_bytes(segment, batch, load.plan.window) for segment in segments.values())
        if needed > memory_bytes:
            raise GraphError(
                f"the segments need {needed} bytes, this worker gives {memory_bytes}: "
                "raise `farflung join --memory` or use more workers"
            )
        state = _shaped(segments, intake.tensors, batch)
        self.segments = {n: TorchSegment(s, _state_of(s, state), load.training) for n, s in segments.items()}
        self.executor = Executor(load.plan, self.segments, load.training, self)

    def shaped(self, parcel: Parcel) -> Parcel:
        """A parcel that came as bytes, with the element type and shape of its value."""
        if parcel.tensor is None and parcel.gradient:
            return parcel
        stated = self.segments[parcel.target].segment.values[parcel.value]
        if parcel.tensor is None:
            return parcel._replace(tensor=empty(stated, self._batch))
        tensor = parcel.tensor.view(DTYPES[stated.dtype]).reshape(stated.shape_at(self._batch))
        return parcel._replace(tensor=tensor)

    def send(self, parcel: Parcel) -> None:
        self._emit(Outgoing(self._attempt, parcel))

    def ready(self, unit: Unit, shares: list[SegmentShare]) -> None:
        told = tuple(Share(s.segment, s.square_sum, s.finite, s.loss) for s in shares)
        self._emit(UnitFinished(self._attempt, unit.number, told))


def check_edges(load: Load, segment: Segment) -> None:
    """Hold the plan's edges of a segment against its program: the same values, sizes and gradients.

    Raises
    ------
    GraphError
        They differ: memory would be taken, or a message awaited, that the program knows nothing of.
    """
    batch = load.training.microbatch_size
    sizes = {value: kind.bytes(batch) for value, kind in segment.values.items()}
    fed = [entry.value for entry in segment.inputs if entry.kind == "input"]
    gradients = set(segment.differentiable)
    incoming = {(v, True, sizes[v], False) for v in fed}
    incoming |= {(v, False, sizes[v], v in gradients) for v in segment.receives}
    outgoing = {(v, sizes[v], v in gradients) for v in segment.sends}
    edges = load.plan.edges
    into = [e for e in edges if e.target == segment.number]
    stated_in = {(e.value, e.source == FEEDER, e.bytes, e.differentiable) for e in into}
    stated_out = {(e.value, e.bytes, e.differentiable) for e in edges if e.source == segment.number}
    if stated_in != incoming or len(into) != len(incoming) or stated_out != outgoing:
        raise GraphError(f"the plan's edges of segment {segment.number} are not those of its program")
    if load.plan.microbatches != load.training.microbatches:
        raise GraphError("the plan and the training differ in the number of microbatches")


def _shaped(
    segments: Mapping[int, Segment], flat: Mapping[tuple[int, str], Tensor], batch: int
) -> dict[tuple[int, str], Tensor]:
    """The flat state tensors with the element types and shapes that the programs state."""
    shaped: dict[tuple[int, str], Tensor] = {}
    for number, segment in segments.items():
        types = {e.name: segment.values[e.value] for e in segment.inputs if e.kind != "constant"}
        for name in segment.owned:
            raw = flat.get((number, name))
            if raw is None or raw.numel() != types[name].bytes(batch):
                raise GraphError(f"the size of {name[:60]!r} is not the one that its program states")
            shaped[(number, name)] = raw.view(DTYPES[types[name].dtype]).reshape(types[name].shape_at(batch))
    if unowned := flat.keys() - shaped.keys():
        raise GraphError(f"the state holds {min(unowned)[1][:60]!r}, which no program owns")
    return shaped


def _state_of(segment: Segment, state: Mapping[tuple[int, str], Tensor]) -> dict[str, Tensor]:
    """State by name: the segment's own tensors, and its neighbours' on this worker for shared parameters."""
    by_name = {name: tensor for (_, name), tensor in sorted(state.items(), key=lambda item: -item[0][0])}
    own = {name: tensor for (number, name), tensor in state.items() if number == segment.number}
    held = [e.name for e in segment.inputs if e.kind in ("parameter", "buffer")]
    missing = [name for name in held if name not in by_name]
    if missing:
        raise GraphError(f"parameter {missing[0][:60]!r} is owned by a segment of another worker")
    return {name: own.get(name, by_name[name]) for name in held}


class ComputeThread(threading.Thread):
    """Runs one job's segments; every public method but `run` only posts a call and returns."""

    def __init__(self, worker: str, memory_bytes: int, emit: Emit) -> None:
        super().__init__(name="farflung-compute", daemon=True)
        self._worker = worker
        self._memory_bytes = memory_bytes
        self._emit = emit
        self._calls: queue.SimpleQueue[tuple[Attempt | None, Callable[[], None]] | None] = queue.SimpleQueue()
        self._job: _Job | None = None
        self._attempt: Attempt = ("", -1)
        self._began = False

    def prepare(self, load: Load, intake: Intake) -> None:
        """Verify the programs and build the segments over `intake`'s memory; answers `Verified`."""
        self._post(None, lambda: self._prepare(load, intake))

    def check_state(self, attempt: Attempt, intake: Intake) -> None:
        """Verify the digests of the whole state; answers `Filled`, or `ComputeFailed`."""
        self._post(attempt, lambda: self._check_state(attempt, intake))

    def begin(self, attempt: Attempt) -> None:
        """Start running what is ready."""
        self._post(attempt, self._begin)

    def receive(self, attempt: Attempt, parcel: Parcel) -> None:
        """A value or gradient has come for a segment here."""
        self._post(attempt, lambda: self._receive(parcel))

    def decide(self, attempt: Attempt, unit: int, scale: float) -> None:
        """End a unit; the next one begins."""
        self._post(attempt, lambda: self._executor.decide(unit, scale))

    def give_state(self, attempt: Attempt) -> None:
        """Hand out copies of all owned tensors; answers `OutgoingState`s and `StateGiven`."""
        self._post(attempt, lambda: self._give_state(attempt))

    def drop(self) -> None:
        """Forget the job and its memory."""
        self._post(None, self._drop)

    def close(self) -> None:
        """End the thread after what it runs now."""
        self._calls.put(None)

    def run(self) -> None:
        while True:
            busy = self._began and self._run_next()
            for call in self._pending(wait=not busy):
                if call is None:
                    return
                attempt, function = call
                if attempt is None or (attempt == self._attempt and self._job is not None):
                    self._guard(function)

    def _pending(self, wait: bool) -> Iterator[tuple[Attempt | None, Callable[[], None]] | None]:
        """Everything posted so far; with `wait` at least one call."""
        if wait:
            yield self._calls.get()
        while True:
            try:
                yield self._calls.get_nowait()
            except queue.Empty:
                return

    def _post(self, attempt: Attempt | None, function: Callable[[], None]) -> None:
        self._calls.put((attempt, function))

    @property
    def _executor(self) -> Executor:
        assert self._job is not None
        return self._job.executor

    def _run_next(self) -> bool:
        ran = False

        def run() -> None:
            nonlocal ran
            ran = self._executor.run_next()

        self._guard(run)
        return ran

    def _guard(self, function: Callable[[], None]) -> None:
        """An error in a segment ends the attempt, never the worker."""
        try:
            function()
        except Exception as error:
            attempt, self._began, self._job = self._attempt, False, None
            text = str(error) if isinstance(error, FarflungError) else f"{type(error).__name__}: {error}"
            self._emit(
                ComputeFailed(attempt, text.strip().splitlines()[0][:500] if text.strip() else "error")
            )

    def _prepare(self, load: Load, intake: Intake) -> None:
        self._drop()
        self._attempt = (load.job, load.attempt)
        try:
            self._job = _Job(self._worker, load, intake, self._memory_bytes, self._emit)
        except FarflungError as error:
            self._emit(Verified(self._attempt, str(error)))
        else:
            self._emit(Verified(self._attempt, None))

    def _check_state(self, attempt: Attempt, intake: Intake) -> None:
        problem = intake.verify()
        self._emit(Filled(attempt) if problem is None else ComputeFailed(attempt, problem))

    def _receive(self, parcel: Parcel) -> None:
        assert self._job is not None
        self._executor.receive(self._job.shaped(parcel))

    def _begin(self) -> None:
        self._began = True

    def _give_state(self, attempt: Attempt) -> None:
        assert self._job is not None
        for number, segment in self._job.segments.items():
            for name, tensor in segment.state().items():
                copy = tensor.clone(memory_format=torch.contiguous_format)
                digest = hashlib.sha256(memory(copy)).digest()
                self._emit(OutgoingState(attempt, number, name, copy, digest))
        self._emit(StateGiven(attempt))

    def _drop(self) -> None:
        self._job, self._began = None, False

"""The compute thread: the only one that uses autograd, generators, tapes, parameters and optimizers.

It talks to the event loop through queues. The loop posts calls to this thread; this thread passes outcomes to
`emit` and parcels for other workers to `send`, both of which must be thread-safe. In a job with codecs,
parcels pass through the codec thread.
"""

from __future__ import annotations

import gc
import hashlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from farflung.errors import FarflungError
from farflung.heap import give_freed_memory_back
from farflung.opdag.analysis import changed_by_training
from farflung.opdag.form import Form
from farflung.plans import FEEDER, LinkCodec
from farflung.protocol.messages import Load
from farflung.protocol.worker import Share
from farflung.runtime.backend import AnyBackend, Array, Backend
from farflung.runtime.executor import Executor, SegmentShare
from farflung.runtime.link_book import LinkBook, PlainLinks
from farflung.runtime.parcel import Coded, Parcel, Sent
from farflung.runtime.state import CODERS, StateKey
from farflung.schedule import Unit
from farflung.worker.codec_thread import CodecThread, CodedLinks
from farflung.worker.copy_store import Piece
from farflung.worker.events import Attempt, ComputeFailed, Filled, UnitFinished, UnitReplayed, Verified
from farflung.worker.loading import (
    load_segments,
    needed_bytes,
    no_room_for_copy,
    require_compiled_to_fit,
    restore_slots,
)
from farflung.worker.state_receiver import EMPTY, StateReceiver
from farflung.worker.task_deadlines import Doing, Limits, Passes, Stopwatch, of_state


@dataclass(frozen=True)
class Outgoing:
    """A parcel for `peer`: another worker, or the submitter."""

    attempt: Attempt
    peer: str
    parcel: Parcel[Coded]


@dataclass(frozen=True)
class OutgoingState:
    """One piece of a segment's state at the end, for the submitter; its bytes do not change until it is sent.

    The coders of the whole worker count to its first segment.
    """

    attempt: Attempt
    segment: int
    key: StateKey
    buffer: memoryview
    sha256: bytes


@dataclass(frozen=True)
class StateCopied:
    """A copy of this worker's share right after `unit`; its bytes do not change.

    The pieces in `keep` are for the submitter; if `copy`, all are for disks.
    """

    attempt: Attempt
    unit: int
    pieces: dict[Piece, memoryview]
    keep: frozenset[Piece]
    copy: bool


@dataclass(frozen=True)
class Restored:
    """The state is that of the load's unit: what was sent in the units of its history may come now."""

    attempt: Attempt


@dataclass(frozen=True)
class StateGiven:
    """The whole state has been emitted as `OutgoingState`."""

    attempt: Attempt


Outcome = (
    OutgoingState | StateCopied | StateGiven | Restored | Verified | Filled | UnitFinished | UnitReplayed
    | ComputeFailed
)  # fmt: skip
Emit = Callable[[Outcome], None]
Send = Callable[[Outgoing], None]


class _Job(Generic[Array]):
    """Segments and executor of one attempt; converts between the backend's arrays and bytes."""

    def __init__(
        self,
        worker: str,
        load: Load,
        receiver: StateReceiver,
        memory_bytes: int,
        backend: Backend[Array],
        emit: Emit,
        send: Send,
        limits: Limits,
        codecs: CodecThread,
        post: Callable[[Attempt, str, Callable[[], None]], None],
    ) -> None:
        self._worker, self._load, self._memory_bytes = worker, load, memory_bytes
        self._peers = self._peers_of(load)
        self.live_from = load.unit + len(load.history)
        self._attempt = (load.job, load.attempt)
        self._post = post
        self._backend = backend
        self._emit, self._send = emit, send
        self._batch = load.training.microbatch_size
        self.segments = load_segments(worker, load, receiver, memory_bytes, backend)
        programs = {number: runner.segment for number, runner in self.segments.items()}
        self.needs_bytes = needed_bytes(worker, load, programs.values(), load.training)
        self.unprotected = no_room_for_copy(worker, load, programs.values(), memory_bytes)
        self.passes = Passes.of(programs, self._batch, limits)
        self.executor = Executor(load.plan, self.segments, load.training, self, load.unit)
        self._forms = {
            (number, value): Form.of(kind, self._batch)
            for number, segment in programs.items()
            for value, kind in segment.values.items()
        }
        self.is_coded = bool(load.training.codecs)
        self._links: PlainLinks | CodedLinks
        if self.is_coded:
            coding = backend.coding(worker, load.plan, load.training, programs.values(), load.unit)
            self._links = CodedLinks(
                coding,
                codecs.post,
                backend.allocate,
                self._decoded,
                self._written,
                self._fail,
                self.live_from,
            )
        else:
            book = LinkBook(worker, load.plan, load.training, programs.values())
            self._links = PlainLinks(book, self._receive, self._written)
        self._computing = 0.0

    @staticmethod
    def _peers_of(load: Load) -> dict[int, str]:
        """The peer of each segment, and of the feeder."""
        peers = dict(enumerate(placed.worker for placed in load.plan.placements))
        return {**peers, FEEDER: load.submitter}

    def run_next(self, stopwatch: Stopwatch) -> bool:
        """Run the next task, timed by `stopwatch`; false if there is none now."""
        due = self.executor.next()
        if due is None:
            return False
        unit, task = due
        began = time.perf_counter()
        with stopwatch.passing(self.passes, (task.segment, task.kind, unit.train), task.microbatch):
            self.executor.run(unit, task)
        self._computing += time.perf_counter() - began
        return True

    def compile(self, stopwatch: Stopwatch) -> None:
        """Compile every segment; raises GraphError if a compiled one does not fit into memory."""
        with stopwatch.during(self.passes.compiling()):
            needs = {number: runner.compile() for number, runner in self.segments.items()}
        require_compiled_to_fit(self._worker, self._load, self.segments, needs, self._memory_bytes)

    def close(self) -> None:
        """Wait for everything that still runs for the job."""
        self._links.close()
        for runner in self.segments.values():
            runner.close()

    def receive(self, parcel: Parcel[Coded]) -> None:
        """Take a parcel that was received; in a job with codecs this may be called on any thread."""
        self._links.read(parcel)

    def send(self, parcel: Parcel[Array]) -> None:
        data = None if parcel.payload is None else self._backend.memory(parcel.payload)
        began = time.perf_counter()
        self._links.write(Parcel(*parcel[:-1], data))
        self._computing -= time.perf_counter() - began

    def _decoded(self, parcel: Parcel[memoryview]) -> None:
        self._post(self._attempt, "taking a value in", lambda: self._receive(parcel))

    def _receive(self, parcel: Parcel[memoryview]) -> None:
        array: Array | None = None
        data = parcel.payload
        if data is not None or not parcel.gradient:
            array = self._backend.array(data or EMPTY, self._forms[parcel.target, parcel.value])
        self.executor.receive(Parcel(*parcel[:-1], array))

    def _written(self, parcel: Parcel[Coded]) -> None:
        self._send(Outgoing(self._attempt, self._peers[parcel.target], parcel))

    def _fail(self, error: Exception) -> None:
        """End the attempt: raise an error of the codec thread on the compute thread."""

        def fail() -> None:
            raise error

        self._post(self._attempt, "reading what came", fail)

    def ready(self, unit: Unit, shares: list[SegmentShare]) -> None:
        reported = tuple(Share(s.segment, s.finite, s.loss, s.squares) for s in shares)
        seconds, self._computing = max(0.0, self._computing), 0.0
        if unit.number < self.live_from:
            self._links.finish(lambda sent: self._post_replayed(unit.number, reported))
            return

        def report(sent: tuple[Sent, ...]) -> None:
            self._emit(UnitFinished(self._attempt, unit.number, reported, sent, seconds))

        self._links.finish(report)

    def replay(self) -> bool:
        """Go on with the units of the load's history; says whether they are over.

        What an evaluation did to the state is nothing, so it is passed over.
        """
        units = self._load.training.units()
        while (number := self.executor.current) < self.live_from:
            unit = units.at(number)
            if unit is None or unit.train:
                return False
            self._end_replayed(number)
        return True

    def _post_replayed(self, unit: int, shares: tuple[Share, ...]) -> None:
        self._post(self._attempt, "updating the parameters", lambda: self._replayed(unit, shares))

    def _replayed(self, unit: int, shares: tuple[Share, ...]) -> None:
        """Decide a unit that ran again as it was decided, if it had the bits that it had then."""
        expected = self._load.history[unit - self._load.unit].digests
        if any(expected.get(share.segment) != share.digest for share in shares):
            problem = f"unit {unit} has other numbers than it had before its worker was lost"
            self._emit(Verified(self._attempt, problem))
            return
        self._end_replayed(unit)
        if self.replay():
            self._emit(Filled(self._attempt))

    def _end_replayed(self, unit: int) -> None:
        past = self._load.history[unit - self._load.unit]
        self._links.decided(unit, past.codecs)
        self.executor.decide(unit, past.scale)
        self._emit(UnitReplayed(self._attempt, unit))

    def decide(self, unit: int, scale: float, codecs: Sequence[LinkCodec] | None) -> None:
        """End a unit; `codecs`, if given, are the links' codec pairs from the next one on."""
        self._links.decided(unit, codecs)
        self.executor.decide(unit, scale)

    def regroup(self, load: Load) -> None:
        """Go on in another attempt with the state as it is; the unit in flight is dropped and runs again."""
        self.executor.restart()
        self._links.restart()
        self._links.rename(load.plan)
        self._load, self._attempt, self._computing = load, (load.job, load.attempt), 0.0
        self._peers = self._peers_of(load)
        self.live_from = load.unit

    def restore(self, receiver: StateReceiver) -> None:
        """Go on from the optimizer slots and the coders' state that were received, whole and verified."""
        restore_slots(self.segments, receiver)
        if (coders := receiver.take_coders()) is not None:
            assert isinstance(self._links, CodedLinks)
            self._links.restore(bytes(coders))

    def give_state(self, whole: bool) -> None:
        """Emit all owned tensors that training changes, as the last applied step left them.

        If `whole`, with optimizer slots and the coders' state. After `ComputeThread.end_training` this takes
        no memory; before, what is emitted are copies, and the unit in flight goes on.
        """

        def end(coders: bytes) -> None:
            self._emit_piece(min(self.segments), CODERS, memoryview(coders))
            self._emit(StateGiven(self._attempt))

        for number, segment in self.segments.items():
            changed = changed_by_training(segment.segment)
            for key, buffer in segment.snapshot(changed, whole, self.executor.is_over).items():
                self._emit_piece(number, key, buffer)
        if whole and isinstance(self._links, CodedLinks):
            self._links.snapshot(end)
        else:
            self._emit(StateGiven(self._attempt))

    def copy_state(self, unit: int, keep: bool, copy: bool) -> None:
        """Emit a copy of the state right after `unit`, which has just been decided.

        What training does not change, of which the submitter needs no copy, takes no more memory.
        """
        attempt, changing = self._attempt, dict[Piece, memoryview]()
        fixed: dict[Piece, memoryview] = {}
        for number, runner in self.segments.items():
            changed = changed_by_training(runner.segment)
            for key, buffer in runner.snapshot(changed, slots=True).items():
                changing[Piece(number, key)] = buffer
            rest = set(runner.segment.owned) - set(changed) if copy else ()
            for key, buffer in runner.snapshot(rest, live=True).items():
                fixed[Piece(number, key)] = buffer

        def emit() -> None:
            kept = frozenset(changing) if keep else frozenset[Piece]()
            self._emit(StateCopied(attempt, unit, {**changing, **fixed}, kept, copy))

        def with_coders(coders: bytes) -> None:
            changing[Piece(min(self.segments), CODERS)] = memoryview(coders)
            emit()

        if isinstance(self._links, CodedLinks):
            self._links.snapshot(with_coders)
        else:
            emit()

    def _emit_piece(self, segment: int, key: StateKey, buffer: memoryview) -> None:
        digest = hashlib.sha256(buffer).digest()
        self._emit(OutgoingState(self._attempt, segment, key, buffer, digest))


_ENDING = "ending a job"
_Call = tuple[Attempt | None, Doing, Callable[[], None]]  # its attempt, if any; its description; the call


class ComputeThread(threading.Thread):
    """Runs one job's segments; every public method except `run` only posts a call and returns.

    `stopwatch` holds what the thread is doing now.
    """

    def __init__(self, worker: str, memory_bytes: int, backend: AnyBackend, emit: Emit, send: Send) -> None:
        super().__init__(name="farflung-compute", daemon=True)
        self._worker = worker
        self._memory_bytes = memory_bytes
        self._backend = backend
        self._emit, self._send = emit, send
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._chore_seconds = math.inf
        self._state_size = 0
        self.stopwatch = Stopwatch()
        self._codecs = CodecThread()
        self._job: _Job[Any] | None = None
        self._attempt: Attempt = ("", -1)
        self._began = False

    @property
    def attempt(self) -> Attempt:
        """The attempt that the thread's current work belongs to."""
        return self._attempt

    def prepare(self, load: Load, receiver: StateReceiver, limits: Limits) -> None:
        """Verify the programs and build the segments over `receiver`'s memory; answers `Verified`."""
        self._chore_seconds, self._state_size = limits.chore_seconds, receiver.size
        self._post(None, "verifying the segments", lambda: self._prepare(load, receiver, limits))

    def check_state(self, attempt: Attempt, receiver: StateReceiver) -> None:
        """Verify the digests of the whole state and finish compiling; answers `Filled` or `ComputeFailed`."""
        self._post(attempt, self._of_state("verifying"), lambda: self._check_state(attempt, receiver))

    def regroup(self, load: Load) -> None:
        """Go on with the job at hand in another attempt; answers `Filled` once the unit in flight is dropped.

        What was posted for the attempt before, and is not done yet, will not be done.
        """
        self._post(None, "dropping a step", lambda: self._regroup(load))

    def begin(self, attempt: Attempt) -> None:
        """Start running tasks."""
        self._post(attempt, "beginning", self._begin)

    def receive(self, attempt: Attempt, parcel: Parcel[Coded]) -> None:
        """Take a value or gradient for a segment of this worker; codecs decode it while tasks run."""
        job = self._job
        if job is not None and job.is_coded and attempt == self._attempt:
            job.receive(parcel)
        else:
            self._post(attempt, "taking a value in", lambda: self._current.receive(parcel))

    def decide(
        self, attempt: Attempt, unit: int, scale: float, codecs: Sequence[LinkCodec] | None = None
    ) -> None:
        """End a unit and begin the next; `codecs`, if given, are the links' codec pairs from then on."""
        self._post(attempt, "updating the parameters", lambda: self._current.decide(unit, scale, codecs))

    def end_training(self, attempt: Attempt) -> None:
        """Run no further task, and free the memory of the unit in flight; the state stays."""
        self._post(attempt, "dropping a step", lambda: self._current.executor.end())

    def give_state(self, attempt: Attempt, whole: bool = False) -> None:
        """Copy all owned tensors for the submitter; answers `OutgoingState`s and `StateGiven`.

        If `whole`, with optimizer slots and the coders' state. The unit in flight goes on, unless
        `end_training` came before.
        """
        self._post(attempt, self._of_state("handing out"), lambda: self._current.give_state(whole))

    def copy_state(self, attempt: Attempt, unit: int, keep: bool, copy: bool) -> None:
        """Copy the state after `unit`, to `keep` it at the submitter or to `copy` it to disks.

        Call it right after `decide` of that unit; answers `StateCopied`, while training goes on.
        """
        self._post(attempt, self._of_state("copying"), lambda: self._current.copy_state(unit, keep, copy))

    def drop(self) -> None:
        """Drop the job and free its memory."""
        self._post(None, _ENDING, self._drop)

    def close(self) -> None:
        """End the thread after its current task."""
        self._calls.put(None)

    def run(self) -> None:
        self._codecs.start()
        try:
            self._serve()
        finally:
            self._codecs.close()

    def _serve(self) -> None:
        while True:
            busy = self._began and self._run_next()
            for call in self._pending(wait=not busy):
                if call is None:
                    return
                attempt, doing, function = call
                if attempt is None or (attempt == self._attempt and self._job is not None):
                    self._guard(doing, function)

    def _pending(self, wait: bool) -> Iterator[_Call | None]:
        """Yield the calls posted so far; with `wait` at least one."""
        if wait:
            yield self._calls.get()
        while True:
            try:
                yield self._calls.get_nowait()
            except queue.Empty:
                return

    def _post(self, attempt: Attempt | None, what: str | Doing, function: Callable[[], None]) -> None:
        self._calls.put((attempt, self._chore(what) if isinstance(what, str) else what, function))

    def _chore(self, what: str) -> Doing:
        return Doing(what, self._chore_seconds)

    def _of_state(self, verb: str) -> Doing:
        return of_state(f"{verb} the parameters", self._state_size, self._chore_seconds)

    @property
    def _current(self) -> _Job[Any]:
        assert self._job is not None
        return self._job

    def _run_next(self) -> bool:
        ran = False

        def run() -> None:
            nonlocal ran
            ran = self._current.run_next(self.stopwatch)

        self._guard(self._chore("adding up what a step has made"), run)
        return ran

    def _guard(self, doing: Doing, function: Callable[[], None]) -> None:
        """Call `function`; an error in it ends the attempt, never the worker."""
        try:
            with self.stopwatch.during(doing):
                function()
        except Exception as error:
            attempt = self._attempt
            with self.stopwatch.during(self._chore(_ENDING)):
                self._drop()
            text = str(error) if isinstance(error, FarflungError) else f"{type(error).__name__}: {error}"
            self._emit(
                ComputeFailed(attempt, text.strip().splitlines()[0][:500] if text.strip() else "error")
            )

    def _prepare(self, load: Load, receiver: StateReceiver, limits: Limits) -> None:
        self._drop()
        self._attempt = (load.job, load.attempt)
        try:
            self._job = _Job(
                self._worker, load, receiver, self._memory_bytes, self._backend, self._emit, self._send,
                limits, self._codecs, self._post,
            )  # fmt: skip
        except FarflungError as error:
            self._emit(Verified(self._attempt, str(error)))
        else:
            self._emit(Verified(self._attempt, None, self._job.unprotected, self._job.needs_bytes))

    def _check_state(self, attempt: Attempt, receiver: StateReceiver) -> None:
        if problem := receiver.verify():
            self._emit(ComputeFailed(attempt, problem))
            return
        self._current.restore(receiver)
        self._current.compile(self.stopwatch)
        if self._current.replay():
            self._emit(Filled(attempt))
        else:
            self._began = True
            self._emit(Restored(attempt))

    def _regroup(self, load: Load) -> None:
        self._began = False
        job, attempt = self._job, (load.job, load.attempt)
        if job is None or self._attempt[0] != load.job:
            self._emit(ComputeFailed(attempt, "a segment failed, so the state is lost"))
            return
        job.regroup(load)
        self._attempt = attempt
        self._emit(Filled(attempt))

    def _begin(self) -> None:
        self._began = True

    def _drop(self) -> None:
        job, self._job, self._began = self._job, None, False
        if job is not None:
            job.close()
            del job
            gc.collect()  # a job contains reference cycles
            give_freed_memory_back()

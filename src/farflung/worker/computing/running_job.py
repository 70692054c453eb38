"""One job on the compute thread: its segments and executor, and how its state is given out and taken in."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic

from farflung.errors import PayloadError
from farflung.heap import give_large_tensors_their_own_pages
from farflung.opdag.analysis import changed_by_training
from farflung.opdag.buckets import in_buckets
from farflung.opdag.form import Form
from farflung.opdag.quantized import QUANTIZED_LINEAR
from farflung.plans import FEEDER, LinkCodec
from farflung.protocol.checks import CheckedUnit
from farflung.protocol.messages import Load
from farflung.protocol.timeline import StepSpan
from farflung.protocol.worker import Share
from farflung.runtime.backend import Array, Backend
from farflung.runtime.executor import Executor, SegmentShare
from farflung.runtime.link_book import LinkBook, PlainLinks
from farflung.runtime.parcel import Coded, Parcel, Sent
from farflung.runtime.state import CODERS, StateKey
from farflung.schedule import Task, Unit
from farflung.worker.computing.codec_thread import CodecThread, CodedLinks
from farflung.worker.computing.loading import (
    load_segments,
    needed_bytes,
    no_room_for_copy,
    require_compiled_to_fit,
    restore_slots,
)
from farflung.worker.computing.outcomes import (
    Emit,
    Outgoing,
    OutgoingState,
    Send,
    ShareReplayed,
    StateCopied,
    StateGiven,
)
from farflung.worker.computing.payload_digests import PayloadDigests
from farflung.worker.computing.state_receiver import EMPTY, StateReceiver
from farflung.worker.computing.task_deadlines import Limits, Passes, Stopwatch
from farflung.worker.events import Attempt, Filled, UnitFinished, UnitReplayed, Verified
from farflung.worker.storing.copy_format import Piece

if TYPE_CHECKING:
    from farflung.runtime.home_noise import HomeNoise

_Pieces = dict[Piece, memoryview]


class RunningJob(Generic[Array]):
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
        secret: bytes,
    ) -> None:
        self._secret = secret
        self._worker, self._load, self._memory_bytes = worker, load, memory_bytes
        self._peers = self._peers_of(load)
        self.live_from = load.unit + len(load.history)
        self._attempt = load.key
        self._post = post
        self._backend = backend
        self._emit, self._send = emit, send
        self._batch = load.training.microbatch_size
        self.segments = load_segments(worker, load, receiver, memory_bytes, backend)
        programs = {number: runner.segment for number, runner in self.segments.items()}
        nodes = (node for segment in programs.values() for node in segment.nodes)
        give_large_tensors_their_own_pages(any(node.op == QUANTIZED_LINEAR for node in nodes))
        self.needs_bytes = needed_bytes(worker, load, programs.values(), load.training)
        self.unprotected = no_room_for_copy(worker, load, programs.values(), memory_bytes)
        self.passes = Passes.of(programs, self._batch, limits)
        self.executor = Executor(load.plan, self.segments, load.training, self, load.unit)
        self._forms = {
            (bucket, number, value): Form.of(kind, self._batch)
            for number, segment in programs.items()
            for bucket, sized in enumerate(in_buckets(segment))
            for value, kind in sized.values.items()
        }
        self._noise = self._noise_of(load)
        self._summed = load.plan.summed()
        self._post_codec = codecs.post
        self._digests = self._fresh_digests()
        self._checked: list[CheckedUnit] = []
        self._has_codecs = bool(load.training.codecs)
        self.uses_codec_thread = self._has_codecs or backend.overlaps
        self._links: PlainLinks | CodedLinks
        if self.uses_codec_thread:
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
        self._timer = backend.timer()
        self._ran: list[Task] = []
        self._watched: int | None = None
        self._updated = (0.0, 0.0)

    def _fresh_digests(self) -> PayloadDigests | None:
        return PayloadDigests(self.segments) if self._load.training.verify else None

    @property
    def submitter(self) -> str:
        """Who submitted the job, and sends its data."""
        return self._load.submitter

    @staticmethod
    def _peers_of(load: Load) -> dict[int, str]:
        """The peer of each segment, and of the feeder."""
        return {**load.plan.seats(), FEEDER: load.submitter}

    def run_next(self, stopwatch: Stopwatch) -> bool:
        """Run the next task, timed by `stopwatch`; false if there is none now."""
        due = self.executor.next()
        if due is None:
            return False
        unit, task = due
        passing = stopwatch.passing(self.passes, (task.segment, task.kind, unit.train), task.microbatch)
        with passing, self._timer.task():
            self.executor.run(unit, task)
        self._ran.append(task)
        return True

    def watch(self, unit: int) -> None:
        """Say with this unit's end when its tasks ran."""
        self._watched = unit

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
        """Take a parcel that was received; on any thread if the job `uses_codec_thread`."""
        size = 0 if parcel.payload is None else len(parcel.payload.data)
        expected = self._forms[parcel.bucket, parcel.target, parcel.value].nbytes if parcel.bucket else size
        if size in (0 if parcel.gradient else expected, expected):
            self._note(parcel)
            self._links.read(parcel)
            return
        self._fail(
            PayloadError(
                f"value {parcel.value} of microbatch {parcel.microbatch} came with {size} bytes, in bucket"
                f" {parcel.bucket} it has {expected}",
                self._load.plan.seats().get(parcel.source),
            )
        )

    def _note(self, parcel: Parcel[Coded]) -> None:
        """Add what was received to the digests of its unit, if others check it."""
        if (digests := self._digests) is not None and self.uses_codec_thread:
            self._post_codec(lambda: digests.note(parcel))
        elif digests is not None:
            digests.note(parcel)

    def send(self, parcel: Parcel[Array]) -> None:
        backend = self._backend
        leave: Callable[[Array], Any] = backend.leave if self.uses_codec_thread else backend.memory
        if self._noise is not None and self._noise.covers(parcel):
            parcel = parcel.carrying(self._noised(parcel, self._noise))
        tensor = None if parcel.payload is None else leave(parcel.payload)
        with self._timer.aside():
            self._links.write(parcel.carrying(tensor))

    def _noise_of(self, load: Load) -> HomeNoise | None:
        if not load.training.home_noise:
            return None
        from farflung.runtime.home_noise import HomeNoise  # with numpy, which an idle worker does without

        return HomeNoise(self._secret, self._worker, load.plan, load.training, load.job)

    def _noised(self, parcel: Parcel[Array], noise: HomeNoise) -> Array:
        """A value that leaves home with its noise, which is made on the host."""
        assert parcel.payload is not None
        form = self._forms[parcel.bucket, parcel.source, parcel.value]
        data = noise.added(self._backend.memory(parcel.payload), form.dtype, form.shape)
        return self._backend.array(data, form)

    def _decoded(self, parcel: Parcel[Any]) -> None:
        self._post(self._attempt, "taking a value in", lambda: self._receive(parcel))

    def _receive(self, parcel: Parcel[Any]) -> None:
        array: Array | None = None
        may_lack = parcel.gradient or (parcel.target, parcel.value) in self._summed
        if parcel.payload is not None or not may_lack:
            received = EMPTY if parcel.payload is None else parcel.payload
            array = self._backend.enter(received, self._forms[parcel.bucket, parcel.target, parcel.value])
        self.executor.receive(parcel.carrying(array))

    def _written(self, parcel: Parcel[Coded]) -> None:
        if self._digests is not None:
            self._digests.note(parcel)
        self._send(Outgoing(self._attempt, self._peers[parcel.target], parcel))

    def _fail(self, error: Exception) -> None:
        """End the attempt: raise an error of the codec thread on the compute thread."""

        def fail() -> None:
            raise error

        self._post(self._attempt, "reading what came", fail)

    def ready(self, unit: Unit, shares: list[SegmentShare]) -> None:
        reported = tuple(
            Share(s.segment, s.finite, s.loss, s.squares, metrics=dict(s.metrics), bits=dict(s.bits))
            for s in shares
        )
        seconds, ran = self._timer.take(), self._when(unit.number)
        if unit.number < self.live_from:
            self._links.finish(
                lambda sent: self._post_replayed(unit.number, self._with_digests(unit, reported))
            )
            return

        def report(sent: tuple[Sent, ...]) -> None:
            whole = self._with_digests(unit, reported)
            self._emit(UnitFinished(self._attempt, unit.number, whole, sent, seconds, ran=ran))

        self._links.finish(report)

    def _with_digests(self, unit: Unit, shares: tuple[Share, ...]) -> tuple[Share, ...]:
        """The shares of a step with the digests of its payloads, if the job is checked."""
        return self._digests.reported(unit.number, shares) if self._digests and unit.train else shares

    def _when(self, unit: int) -> tuple[StepSpan, ...]:
        """When the tasks of a unit ran that was watched, and the update before them."""
        tasks, self._ran = self._ran, []
        if unit != self._watched:
            return ()
        periods = self._timer.periods()
        if len(periods) != len(tasks):
            return ()  # a device that is not done with them: which period is whose is not known
        update = StepSpan("update", -1, *self._updated)
        timed = zip(tasks, periods, strict=True)
        return (update, *(StepSpan(task.kind.value, task.microbatch, *period) for task, period in timed))

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
        if self._load.checks:
            digests = {share.segment: share.digest for share in shares}
            received = {share.segment: share.received for share in shares}
            self._checked.append(CheckedUnit(unit, digests, received))
        expected = self._load.history[unit - self._load.unit].digests
        if not self._load.checks and any(expected.get(share.segment) != share.digest for share in shares):
            problem = f"unit {unit} has other numbers than it had before its worker was lost"
            self._emit(Verified(self._attempt, problem))
            return
        self._end_replayed(unit)
        if self.replay():
            self.end_replay()

    def _end_replayed(self, unit: int) -> None:
        past = self._load.history[unit - self._load.unit]
        self._links.decided(unit, past.codecs)
        self.executor.decide(unit, past.scale)
        self._emit(UnitReplayed(self._attempt, unit))

    def decide(self, unit: int, scale: float, codecs: Sequence[LinkCodec] | None) -> None:
        """End a unit; `codecs`, if given, are the links' codec pairs from the next one on."""
        began = time.perf_counter()
        self._links.decided(unit, codecs)
        self.executor.decide(unit, scale)
        self._updated = (began, time.perf_counter())

    def regroup(self, load: Load) -> str:
        """Go on in another attempt with the state as it is; the unit in flight is dropped and runs again.

        Returns why it cannot, if the sums of another plan need more memory than the worker has; else nothing.
        """
        if load.plan.sums != self._load.plan.sums:
            programs = [runner.segment for runner in self.segments.values()]
            needed = needed_bytes(self._worker, load, programs, load.training)
            if needed > self._memory_bytes:
                return (
                    f"with these replicas it needs {needed} bytes of memory, it offers {self._memory_bytes}"
                )
        self.executor.restart(load.plan)
        self._links.restart()
        self._links.rename(load.plan, load.state_donors.keys())
        self._summed = load.plan.summed()
        self._noise = self._noise_of(load)
        self._load, self._attempt = load, load.key
        self._timer.reset()
        self._ran, self._watched = [], None
        self._digests = self._fresh_digests()
        self._peers = self._peers_of(load)
        self.live_from = load.unit
        return ""

    def restore(self, receiver: StateReceiver) -> None:
        """Go on from the optimizer slots and the coders' state that were received, whole and verified."""
        restore_slots(self.segments, receiver)
        if (coders := receiver.take_coders()) is not None:
            assert isinstance(self._links, CodedLinks)
            self._links.restore(bytes(coders))

    def give_state(self, whole: bool) -> None:
        """Emit all owned tensors that training changes, as the last applied step left them.

        Of several pipelines only one gives them (`Plan.home_pipeline`).
        If `whole`, with optimizer slots and the coders' state. After `ComputeThread.end_training` this takes
        no memory; before, what is emitted are copies, and the unit in flight goes on.
        """

        def end(coders: bytes) -> None:
            self._emit_piece(min(self.segments), CODERS, memoryview(coders))
            self._emit(StateGiven(self._attempt))

        plan = self._load.plan
        is_given = plan.pipeline_of(min(self.segments)) == plan.home_pipeline
        for number, segment in self.segments.items() if is_given else ():
            changed = changed_by_training(segment.segment)
            for key, buffer in segment.snapshot(changed, whole, self.executor.is_over).items():
                self._emit_piece(number, key, buffer)
        if whole and self._has_codecs and isinstance(self._links, CodedLinks):
            self._links.snapshot(end)
        else:
            self._emit(StateGiven(self._attempt))

    def give_to(self, taker: str) -> None:
        """Emit the state that a worker of another pipeline lacks, as views of this worker's own.

        The taker's segment is named beside each piece. Nothing changes until all members have loaded.
        """
        for wanted, own in sorted(self._load.state_donors.items()):
            if own not in self.segments or self._peers.get(wanted) != taker:
                continue
            runner = self.segments[own]
            state = runner.snapshot(set(runner.segment.owned), slots=True, live=True)
            for key, buffer in state.items():
                self._emit_piece(wanted, key, buffer, taker)

    def end_replay(self) -> None:
        """All units of the load's history, if any, are applied: a checker emits what it found and holds."""
        if not self._load.checks:
            self._emit(Filled(self._attempt))
            return
        self._with_pieces(
            True, lambda pieces, base: ShareReplayed(self._attempt, tuple(self._checked), pieces, base or {})
        )

    def copy_state(self, unit: int, keep: bool, copy: bool, with_base: bool) -> None:
        """Emit a copy of the state right after `unit`, which has just been decided.

        What training does not change, of which the submitter needs no copy, takes no more memory on a CPU. It
        is part of what is emitted only `with_base`.
        """
        attempt = self._attempt
        self._with_pieces(
            copy and with_base,
            lambda pieces, base: StateCopied(attempt, unit, pieces, keep, copy, base),
        )

    def _with_pieces(
        self, with_base: bool, outcome: Callable[[_Pieces, _Pieces | None], StateCopied | ShareReplayed]
    ) -> None:
        """Emit what `outcome` makes of the state now: what training changes, and the rest if `with_base`."""
        changing = dict[Piece, memoryview]()
        base: dict[Piece, memoryview] | None = {} if with_base else None
        for number, runner in self.segments.items():
            changed = changed_by_training(runner.segment)
            for key, buffer in runner.snapshot(changed, slots=True).items():
                changing[Piece(number, key)] = buffer
            if base is not None:
                rest = set(runner.segment.owned) - set(changed)
                for key, buffer in sorted(runner.snapshot(rest, live=True).items()):
                    base[Piece(number, key)] = buffer

        def emit() -> None:
            self._emit(outcome(changing, base))

        def with_coders(coders: bytes) -> None:
            changing[Piece(min(self.segments), CODERS)] = memoryview(coders)
            emit()

        if self._has_codecs and isinstance(self._links, CodedLinks):
            self._links.snapshot(with_coders)
        else:
            emit()

    def _emit_piece(self, segment: int, key: StateKey, buffer: memoryview, peer: str | None = None) -> None:
        digest = hashlib.sha256(buffer).digest()
        self._emit(OutgoingState(self._attempt, segment, key, buffer, digest, peer))

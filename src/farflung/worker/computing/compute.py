"""The compute thread: the only one that uses autograd, generators, tapes, parameters and optimizers.

It talks to the event loop through queues. The loop posts calls to this thread; this thread passes outcomes to
`emit` and parcels for other workers to `send`, both of which must be thread-safe. In a job with codecs, and
on a device to which values are copied while it computes, parcels pass through the codec thread.
"""

from __future__ import annotations

import gc
import math
import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from farflung.errors import DataError, DeviceFailed, FarflungError, PayloadError
from farflung.heap import give_freed_memory_back
from farflung.plans import LinkCodec
from farflung.protocol.messages import Load, Measured
from farflung.runtime.backend import AnyBackend
from farflung.runtime.parcel import Coded, Parcel
from farflung.worker.computing.codec_thread import CodecThread
from farflung.worker.computing.outcomes import (
    Emit,
    Restored,
    Send,
)
from farflung.worker.computing.running_job import RunningJob
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.computing.task_deadlines import Doing, Limits, Stopwatch, of_state
from farflung.worker.events import Attempt, ComputeFailed, Filled, Verified
from farflung.worker.measuring import measured

_ENDING = "ending a job"
_Call = tuple[Attempt | None, Doing, Callable[[], None]]  # its attempt, if any; its description; the call


class ComputeThread(threading.Thread):
    """Runs one job's segments; every public method except `run` only posts a call and returns.

    `stopwatch` holds what the thread is doing now. If the device fails for good, `failure` says how, and the
    thread has ended.
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
        self.failure: DeviceFailed | None = None
        self._codecs = CodecThread()
        self._noise_secret = secrets.token_bytes(32)  # no other process ever has it
        self._job: RunningJob[Any] | None = None
        self._attempt: Attempt = ("", -1)
        self._began = False

    @property
    def attempt(self) -> Attempt:
        """The attempt that the thread's current work belongs to."""
        return self._attempt

    def warm_up(self) -> None:
        """Get ready for the first program that is loaded."""
        self._post(None, "getting ready for a program", self._backend.warm_up)

    def measure(self) -> Future[Measured | None]:
        """Measure the device again; None if that fails, as it may where memory is taken."""
        found: Future[Measured | None] = Future()

        def measure() -> None:
            if not found.set_running_or_notify_cancel():
                return
            try:
                found.set_result(measured(self._backend))
            except Exception as error:
                found.set_result(None)
                if isinstance(self._backend.failure(error), DeviceFailed):
                    raise

        self._post(None, "measuring the device", measure)
        return found

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
        """Take a value or gradient for a segment of this worker; it is decoded or copied while tasks run."""
        job = self._job
        if job is not None and job.uses_codec_thread and attempt == self._attempt:
            job.receive(parcel)
        else:
            self._post(attempt, "taking a value in", lambda: self._current.receive(parcel))

    def decide(
        self, attempt: Attempt, unit: int, scale: float, codecs: Sequence[LinkCodec] | None = None
    ) -> None:
        """End a unit and begin the next; `codecs`, if given, are the links' codec pairs from then on."""
        self._post(attempt, "updating the parameters", lambda: self._current.decide(unit, scale, codecs))

    def watch(self, attempt: Attempt, unit: int) -> None:
        """Say with the end of a unit to come when its tasks ran (`UnitFinished.ran`)."""
        self._post(attempt, "being watched", lambda: self._current.watch(unit))

    def end_training(self, attempt: Attempt) -> None:
        """Run no further task, and free the memory of the unit in flight; the state stays."""
        self._post(attempt, "dropping a step", lambda: self._current.executor.end())

    def give_state(self, attempt: Attempt, whole: bool = False) -> None:
        """Copy all owned tensors for the submitter; answers `OutgoingState`s and `StateGiven`.

        If `whole`, with optimizer slots and the coders' state. The unit in flight goes on, unless
        `end_training` came before.
        """
        self._post(attempt, self._of_state("handing out"), lambda: self._current.give_state(whole))

    def give_to(self, attempt: Attempt, taker: str) -> None:
        """Give another worker the state that it lacks (`Load.state_donors`); answers `OutgoingState`s.

        Call it before `begin`: what is emitted takes no memory, and must not change until it is sent.
        """
        self._post(attempt, self._of_state("handing out"), lambda: self._current.give_to(taker))

    def copy_state(
        self, attempt: Attempt, unit: int, keep: bool, copy: bool, with_base: bool = False
    ) -> None:
        """Copy the state after `unit`, to `keep` it at the submitter or to `copy` it to disks.

        What training does not change comes along only `with_base`. Call it right after `decide` of that unit;
        answers `StateCopied`, while training goes on.
        """
        self._post(
            attempt,
            self._of_state("copying"),
            lambda: self._current.copy_state(unit, keep, copy, with_base),
        )

    def wait(self, attempt: Attempt, what: str, until: Callable[[], object]) -> None:
        """Do nothing else before `until` returns, however long it takes."""

        def wait() -> None:
            until()

        self._post(attempt, Doing(what, math.inf), wait)

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
        while self.failure is None:
            busy = self._began and self._run_next()
            for call in self._pending(wait=not busy and self.failure is None):
                if call is None or self.failure is not None:
                    return
                error = self._carry_out(*call)
                del call  # it may hold the job, whose memory `_fail` is to free
                if error is not None:
                    self._fail(error)

    def _carry_out(
        self, attempt: Attempt | None, doing: Doing, function: Callable[[], None]
    ) -> Exception | None:
        """Make a call, unless its attempt is over; returns the error in it."""
        if attempt is None or (attempt == self._attempt and self._job is not None):
            return self._guarded(doing, function)
        return None

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
    def _current(self) -> RunningJob[Any]:
        assert self._job is not None
        return self._job

    def _run_next(self) -> bool:
        ran = False

        def run() -> None:
            nonlocal ran
            ran = self._current.run_next(self.stopwatch)

        error = self._guarded(self._chore("adding up what a step has made"), run)
        if error is not None:
            self._fail(error)
        return ran

    def _guarded(self, doing: Doing, function: Callable[[], None]) -> Exception | None:
        """Call `function`; returns the error in it, or what that says of the device."""
        try:
            with self.stopwatch.during(doing):
                function()
        except Exception as error:
            found = self._backend.failure(error) or error
            error.__traceback__ = None  # its frames hold the job
            return found
        return None

    def _fail(self, error: Exception) -> None:
        """End the attempt after an error, and the thread only if its device has failed."""
        attempt, sender = self._attempt, self._sender_of(error)
        if not isinstance(error, DeviceFailed):
            error = self._end_job() or error
        if isinstance(error, DeviceFailed):
            self.failure = error
            return
        text = str(error) if isinstance(error, FarflungError) else f"{type(error).__name__}: {error}"
        reason = text.strip().splitlines()[0][:500] if text.strip() else "error"
        self._emit(ComputeFailed(attempt, reason, sender))

    def _sender_of(self, error: Exception) -> str | None:
        """Who sent what the error is about; None if it came from here, and this worker may be at fault."""
        if self._job is None or not isinstance(error, (DataError, PayloadError)):
            return None
        by = error.sender if isinstance(error, PayloadError) else None
        return by or self._job.submitter

    def _end_job(self) -> DeviceFailed | None:
        """Drop the job after an error; returns how the device fails at that, if it does."""
        try:
            with self.stopwatch.during(self._chore(_ENDING)):
                self._drop()
        except Exception as error:
            found = self._backend.failure(error)
            if not isinstance(found, DeviceFailed):
                raise
            return found
        return None

    def _prepare(self, load: Load, receiver: StateReceiver, limits: Limits) -> None:
        self._drop()
        self._attempt = load.key
        try:
            self._job = RunningJob(
                self._worker, load, receiver, self._memory_bytes, self._backend, self._emit, self._send,
                limits, self._codecs, self._post, self._noise_secret,
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
            self._current.end_replay()
        else:
            self._began = True
            self._emit(Restored(attempt))

    def _regroup(self, load: Load) -> None:
        self._began = False
        job, attempt = self._job, load.key
        if job is None or self._attempt[0] != load.job:
            self._emit(ComputeFailed(attempt, "a segment failed, so the state is lost"))
            return
        self._attempt = attempt
        if problem := job.regroup(load):
            self._emit(Verified(attempt, problem))
        else:
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
            self._backend.release()

"""`Run`: a training run that goes on beside the program that started it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Collection, Generator
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from farflung.client.api.callbacks import Callbacks, OnCheckpoint, OnMerge, OnStep, OnValidation
from farflung.client.api.execution import STOPPED, Begun, Execution, Hosting
from farflung.client.api.frontend import Frontend
from farflung.client.api.interrupts import on_signals
from farflung.client.api.loop_thread import LoopThread
from farflung.client.api.metrics import Metrics, MetricsCollector
from farflung.client.output.progress import Observer, Observers
from farflung.errors import CallbackFailed, FleetClosed, JobError, NoWeights, RunFailed, RunInterrupted
from farflung.protocol.messages import Planned

if TYPE_CHECKING:
    from torch import Tensor, nn

    from farflung.client.output.records import Summary
    from farflung.plans import Plan

RunStatus = Literal["starting", "waiting", "training", "collecting", "done", "failed", "cancelled", "left"]
"""How far a run is: its processes or its submission start; it waits for workers, a plan or loading; it
trains; the weights are collected; or it is over, as `wait` says."""


class Run:
    """A run that `Fleet.train` has begun, which goes on beside the program; any thread may call its methods.

    `await run` does what `wait` does, inside an event loop.

    Attributes
    ----------
    metrics : Metrics
        The steps, live: `for row in run.metrics` ends with the run, `run.metrics.latest` is the newest row,
        `run.metrics.rows` are those so far.
    """

    def __init__(
        self,
        begun: Begun,
        hosting: Hosting,
        loop: LoopThread,
        frontend: Frontend,
        observer: Observer,
        on_step: OnStep | None = None,
        on_validation: OnValidation | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        on_merge: OnMerge | None = None,
    ) -> None:
        self._begun = begun
        self._loop = loop
        self._frontend = frontend
        self._over: Future[Summary] = Future()
        self._summary: Summary | None = None
        self._following = _Following()
        self.metrics = Metrics(self.require_can_wait)
        self._over.add_done_callback(lambda _: self.metrics.end())
        self._callbacks = Callbacks(on_step, on_validation, on_checkpoint, on_merge, self._callback_failed)
        everyone = Observers(self._following, MetricsCollector(self.metrics), observer, self._callbacks)
        self._observer = everyone
        self._execution = Execution(begun, hosting, everyone, frontend)
        self._starting = threading.Lock()
        self._is_started = self._is_abandoned = False

    def __repr__(self) -> str:
        """One line: the job, how far it is, and the newest loss."""
        row, job = self.metrics.latest, self._begun.prepared.job
        step = "" if row is None else f", step {row.step} of {job.steps}"
        loss = "" if row is None or row.loss is None else f", loss {row.loss:.4f}"
        return f"<Run {job.name} ({self.id or 'not submitted'}): {self.status}{step}{loss}>"

    @property
    def id(self) -> str | None:
        """The job's id at the broker, as `farflung status` shows it; None before the broker has the job."""
        return self._following.job

    @property
    def folder(self) -> Path:
        """The folder with the run's files (docs/reference/run-files.md)."""
        return self._begun.folder.path

    @property
    def plan(self) -> Plan | None:
        """The newest plan: which segment runs on which worker. None before there is one."""
        return self._following.plan

    @property
    def status(self) -> RunStatus:
        """How far the run is."""
        if not self._over.done():
            return self._following.status
        if self._summary is not None:
            states: dict[str, RunStatus] = {"done": "done", "cancelled": "cancelled"}
            return states.get(self._summary.state, "failed")
        error = self._over.exception()
        if isinstance(error, RunInterrupted):
            return "cancelled"
        return "left" if self._following.is_left else "failed"

    @property
    def summary(self) -> Summary | None:
        """How the run ended; None before that, and if it was ended at once or left."""
        return self._summary

    @property
    def resuming(self) -> str:
        """The Python call, or the command, that goes on with this run from its newest checkpoint."""
        return self._begun.start.command

    def wait(
        self, timeout: float | None = None, *, signals: Collection[signal.Signals] = (signal.SIGINT,)
    ) -> Summary:
        """Wait for the end of the run; the same again at each further call.

        Ctrl-C in the main thread stops the run in good order: the weights of the last applied step are
        collected first. A second Ctrl-C ends it at once, a third one ends the waiting.

        Parameters
        ----------
        timeout
            Seconds to wait at most; None waits for as long as it takes.
        signals
            Which signals stop the run while the main thread waits here; () leaves all of them alone.

        Returns
        -------
        Summary
            The contents of `summary.json`. Its `state` is done, or cancelled if the run was stopped.

        Raises
        ------
        RunFailed
            The run failed; the message says why, and what was kept.
        CallbackFailed
            A callback raised, and the run was stopped in good order.
        RunInterrupted
            The run was ended at once.
        TimeoutError
            The run is not over after `timeout` seconds; it goes on.
        JobError
            A callback or the observer of the run waits here, which would never end.
        """
        self.require_can_wait()
        with on_signals(signals, self.interrupt, self.end_at_once):
            return self._over.result(timeout)

    async def wait_async(self) -> Summary:
        """As `wait`, inside an event loop; cancelling this leaves the run as it is."""
        return await asyncio.shield(asyncio.wrap_future(self._over))

    def __await__(self) -> Generator[Any, None, Summary]:
        """`await run`: see `wait_async`."""
        return self.wait_async().__await__()

    def stop(self, reason: str = STOPPED) -> None:
        """Stop in good order and return at once: the weights of the last applied step are collected.

        The summary, and the line that `farflung status` shows, have the reason. Without effect on a run that
        is over.
        """
        self._loop.post(lambda: self._execution.stop(reason))

    def end_at_once(self) -> None:
        """End the run without collecting its weights; checkpoints that are saved stay."""
        self._loop.post(self._execution.end_at_once)

    def leave(self, reason: str = "left by the user") -> None:
        """End this process's part: the broker holds the job, and `train(resume=)` takes its place again.

        `wait` then raises `RunFailed`. A local fleet cannot hold a job without its program.
        """
        self._following.is_left = True
        self._loop.post(lambda: self._execution.leave(reason))

    def state_dict(self, ema: bool = False) -> dict[str, Tensor]:
        """The trained parameters and buffers by name, as `torch.nn.Module.state_dict` names them.

        Of a run that trains a PEFT adapter alone, they are the adapter's, for `set_peft_model_state_dict`.
        Tied tensors share memory. They are on the CPU, with the dtypes and shapes of the job's model. With
        `ema` they are the moving averages that the job's optimizer keeps.

        Raises
        ------
        NoWeights
            The run is not over, or has left no weights.
        CheckpointError
            The file of the weights cannot be read.
        """
        from farflung.client.output.result import read_result

        return read_result(self._weights(ema))

    def load_into(self, model: nn.Module, ema: bool = False) -> None:
        """Load the trained parameters and buffers into a module like the job's, such as the job's own.

        With `ema`, their moving averages.

        Raises
        ------
        NoWeights
            The run is not over, or has left no weights.
        JobError
            The file of the weights cannot be read, or is of another model.
        """
        from farflung.client.output.result import load_result

        load_result(self._weights(ema), model)

    def require_can_wait(self) -> None:
        """Raise JobError on the threads of callbacks and observer, on which no end of this run can come."""
        if self._over.done():
            return
        if threading.current_thread() is self._callbacks.thread:
            raise JobError("a callback cannot wait for its own run: call run.stop(), or return")
        self._loop.require_can_wait()

    @property
    def is_going_on(self) -> bool:
        """Whether the run is not over."""
        return self._is_started and not self._over.done()

    def start(self) -> None:
        """Begin to train; `Fleet.train` has done so, `Fleet.begin` leaves it to its caller.

        Raises
        ------
        FleetClosed
            The fleet was closed before.
        """
        with self._starting:
            if self._is_abandoned:
                raise FleetClosed("this fleet was closed before the run began: nothing was trained")
            self._is_started = True
        self._loop.begin(self._execute())

    def abandon(self) -> bool:
        """Release a run that was never started, and give its folder back; False if it was started."""
        with self._starting:
            if self._is_started or self._is_abandoned:
                return self._is_abandoned
            self._is_abandoned = True
        error = FleetClosed("the fleet was closed before the run began")
        self._observer.ended("cancelled", str(error))
        self._observer.close()
        if self._begun.log is not None:
            self._begun.log.wait()
        self._begun.folder.restore_previous()
        self._begun.folder.close()
        self._callbacks.finish(lambda: self._over.set_exception(error))
        return True

    def when_over(self, call: Callable[[], None]) -> None:
        """Call a function, on any thread, once the run is over."""
        self._over.add_done_callback(lambda _: call())

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop in good order as Ctrl-C does, or another signal, and say what happens to the weights."""
        self._frontend.warn(self._execution.stopping_words())
        self.stop(STOPPED if number == signal.SIGINT else f"stopped by {number.name}")

    def settled(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds for any end of the run; raises JobError as `wait` does."""
        self.require_can_wait()
        futures.wait([self._over], timeout)

    def _weights(self, ema: bool) -> Path:
        if not self._over.done():
            raise NoWeights(f"the run has no trained weights yet ({self.status}): call run.wait() first")
        from farflung.client.output.result import result_in

        if (found := result_in(self._begun.folder, ema)) is None:
            if ema and self._begun.prepared.job.optimizer.ema is None:
                raise NoWeights("the job keeps no moving averages: give its optimizer ema=0.999")
            raise NoWeights(f"the run left no weights in {self.folder}: it ended before they were collected")
        return found

    def _callback_failed(self, error: CallbackFailed) -> None:
        self.stop(f"stopped because {error}"[:500])

    async def _execute(self) -> None:
        """Train, and let `wait` return once every callback has."""
        try:
            summary = await self._execution.run()
        except BaseException as error:
            ended = error
            self._callbacks.finish(lambda: self._over.set_exception(ended))
            if not isinstance(error, Exception):
                raise
        else:
            self._summary = summary
            self._callbacks.finish(lambda: self._settle(summary))

    def _settle(self, summary: Summary) -> None:
        if (failed := self._callbacks.error) is not None:
            failed.args = (f"{failed}; the run stopped in good order{self._kept(summary)}",)
            self._over.set_exception(failed)
        elif summary.state == "failed":
            self._over.set_exception(RunFailed(summary.reason))
        else:
            self._over.set_result(summary)

    def _kept(self, summary: Summary) -> str:
        if summary.weights_step is None:
            return ""
        from farflung.client.output.result import result_in

        return f", and the weights of step {summary.weights_step} are in {result_in(self._begun.folder)}"


class _Following(Observer):
    """What a run last reported of itself."""

    def __init__(self) -> None:
        self.job: str | None = None
        self.plan: Plan | None = None
        self.status: RunStatus = "starting"
        self.is_left = False

    def waiting(self, words: str) -> None:
        if self.status == "starting":
            self.status = "waiting"

    def accepted(self, job: str) -> None:
        self.job = job

    def planned(self, planned: Planned) -> None:
        self.plan, self.status = planned.plan, "waiting"

    def running(self) -> None:
        self.status = "training"

    def collecting(self, received_bytes: int, total_bytes: int) -> None:
        self.status = "collecting"

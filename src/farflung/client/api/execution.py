"""`Execution`: one run on the event loop of its fleet, from the first message to the summary."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farflung.client.api.frontend import Frontend
from farflung.client.beginning.run_start import RunStart
from farflung.client.options.asked import Asked
from farflung.client.output.progress import Observer
from farflung.client.output.records import Outcome
from farflung.errors import FarflungError, JobRefused, RunInterrupted

if TYPE_CHECKING:
    from farflung.client.capture.prepared import Prepared
    from farflung.client.output.log_observer import LoggingObserver
    from farflung.client.output.records import Summary
    from farflung.client.output.run_folder import RunFolder
    from farflung.client.run.checkpointing import Checkpointing
    from farflung.client.run.submitter import Submitter
    from farflung.transport.security.identity import Identity

STOPPED = "stopped by the user"


@dataclass(frozen=True)
class Host:
    """Where a run trains: at the broker that `identity` joined.

    A local fleet has `watch`, which waits for the first of its processes that ends by itself and reports it.
    No more workers can join such a fleet, and its broker never comes back.
    """

    identity: Identity
    watch: Callable[[Callable[[str], None]], Coroutine[Any, Any, None]] | None = None


Hosting = Callable[[Path], AbstractAsyncContextManager[Host]]
"""Called with the folder for logs of processes that have to be started for the run."""


@dataclass(frozen=True)
class Begun:
    """A run that is ready to train: its captured job, what is asked of it, its open folder, and its log."""

    prepared: Prepared
    asked: Asked
    start: RunStart
    folder: RunFolder
    checkpointing: Checkpointing
    log: LoggingObserver | None = None


class Execution:
    """Trains a run that has begun, at what `hosting` opens. Its methods belong to one event loop."""

    def __init__(self, begun: Begun, hosting: Hosting, observer: Observer, frontend: Frontend) -> None:
        self._begun = begun
        self._hosting = hosting
        self._observer = observer
        self._frontend = frontend
        self._task: asyncio.Task[Any] | None = None
        self._submitter: Submitter | None = None
        self._is_asked_to_end = False  # by any of `stop`, `leave` and `end_at_once`
        self._is_submitted = False
        self._stopped_for = ""  # before anything was submitted

    async def run(self) -> Summary:
        """Train; if no step was done when the user stopped it, an older run gets its folder name back.

        A run whose place at a job is gone goes on from its newest checkpoint.

        Raises
        ------
        RunInterrupted
            The user ended it at once, without waiting for the weights.
        RunLeft
            The user left it; the broker holds the job.
        JobRefused
            The broker does not take the job. A folder that was made for the run is gone again.
        FarflungError
            The local fleet cannot be started, or there is no checkpoint to go on from.
        """
        from farflung.client.run.returns import RunLeft
        from farflung.client.run.submitter import CANCELLED, FAILED, STOPPED_AT_ONCE

        begun, frontend = self._begun, self._frontend
        outcome, is_refused = Outcome(FAILED, "a bug in farflung ended the run"), False
        try:
            summary = await self._train()
            outcome = Outcome(summary.state, summary.reason)
            return summary
        except RunLeft as left:
            outcome = Outcome("left", str(left))
            frontend.note(f"{left}: the broker holds the job, and its workers their state")
            frontend.note(f"to go on: {begun.start.command}")
            raise
        except asyncio.CancelledError:
            if self._stopped_for and not self._is_submitted:
                outcome = Outcome(CANCELLED, self._stopped_for)
                return self._stopped_before(outcome)
            outcome = Outcome(CANCELLED, STOPPED_AT_ONCE)
            raise RunInterrupted(STOPPED_AT_ONCE) from None
        except FarflungError as error:
            outcome = Outcome(FAILED, str(error))
            is_refused = isinstance(error, JobRefused)
            raise
        finally:
            await self._end(outcome, is_refused)

    def stop(self, reason: str = STOPPED) -> None:
        """Stop in good order; while no job is submitted there is nothing to keep, so at once."""
        self._is_asked_to_end = True
        if self._submitter is None:
            self._stopped_for = reason
            self.end_at_once()
        else:
            self._submitter.stop(reason)

    def _stopped_before(self, outcome: Outcome) -> Summary:
        """The summary of a run that was stopped before its job was submitted: it has written nothing."""
        from farflung.client.output.run_metrics import RunMetrics

        now, prepared = time.monotonic(), self._begun.prepared
        metrics = RunMetrics(prepared.job, now, prepared.emulated)
        return metrics.summary(outcome.state, outcome.reason, "", now)

    def leave(self, reason: str) -> None:
        """End this process's part of the run; a job that is not submitted yet ends."""
        self._is_asked_to_end = True
        if self._submitter is None:
            self.end_at_once()
        else:
            self._submitter.leave(reason)

    def end_at_once(self) -> None:
        """End without collecting the weights."""
        self._is_asked_to_end = True
        if self._task is not None:
            self._task.cancel()

    def stopping_words(self) -> str:
        """What happens now that the user asked to stop, with what happens to the weights."""
        submitter = self._submitter
        if submitter is None:
            return "stopping: nothing is submitted yet"
        if submitter.waits_for_broker:
            return (
                "stopping once the broker is back, which holds the job (press Ctrl-C again to leave it there)"
            )
        weights = "" if self._begun.prepared.emulated else submitter.recorder.metrics.weights_on_stop()
        return f"stopping{weights} (press Ctrl-C again to end at once)"

    async def _train(self) -> Summary:
        from farflung.client.run.returns import PlaceGone

        self._task = asyncio.current_task()
        begun = self._begun
        try:
            return await self._submit(begun.checkpointing)
        except PlaceGone as gone:
            self._submitter = None
            self._frontend.note(f"{gone}: going on from the newest checkpoint")
        codecs = begun.asked.target.wishes.codecs
        again = begun.start.at_checkpoint()
        return await self._submit(await asyncio.to_thread(again.begin, begun.folder, begun.prepared, codecs))

    async def _submit(self, checkpointing: Checkpointing) -> Summary:
        """Submit the job and follow it to its end. A process of a local fleet that ends fails the run."""
        from farflung.client.run.submitter import Submitter

        if self._is_asked_to_end:
            raise asyncio.CancelledError
        begun, target = self._begun, self._begun.asked.target
        async with self._hosting(begun.folder.logs) as host:
            self._is_submitted = True
            self._submitter = submitter = Submitter(
                begun.prepared,
                host.identity,
                begun.folder,
                self._observer,
                target.workers,
                on=target.pool,
                wishes=target.wishes,
                closed=host.watch is not None,
                checkpointing=None if begun.prepared.emulated else checkpointing,
                patience_seconds=begun.asked.patience_seconds,
            )
            watching = None if host.watch is None else asyncio.create_task(host.watch(submitter.fail_soon))
            try:
                return await submitter.run()
            finally:
                if watching is not None:
                    watching.cancel()

    async def _end(self, outcome: Outcome, is_refused: bool) -> None:
        """Close all that follows the run, and then its folder, into which a log may write until then."""
        from farflung.client.run.submitter import CANCELLED, STOPPED_AT_ONCE

        begun = self._begun
        self._observer.ended(outcome.state, outcome.reason)
        self._observer.close()
        if begun.log is not None:
            with suppress(asyncio.CancelledError):  # the user does not want to wait for it
                await begun.log.wait_async()
        if outcome.state == CANCELLED:
            is_restored = self._restore_older_run()
            if outcome.reason == STOPPED_AT_ONCE and not is_restored and begun.folder.has_checkpoint():
                self._frontend.note(resume_note(begun.start.command))
        if is_refused:
            self._leave_nothing()
        begun.folder.close()

    def _leave_nothing(self) -> None:
        """Remove the folder that was made for a run whose job was refused, or say why it stays."""
        folder = self._begun.folder
        is_gone = folder.discard() or self._restore_older_run()
        if not is_gone and self._begun.start.earlier is None:
            self._frontend.note(f"nothing was trained: {folder.path} has only the record of the refused job")

    def _restore_older_run(self) -> bool:
        folder = self._begun.folder
        is_restored = folder.restore_previous()
        if is_restored:
            where = f"its files are in {folder.path}"
            self._frontend.note(f"no step was completed: {where}, and the older run has its folder back")
        return is_restored


def resume_note(command: str) -> str:
    """The line that says how to go on with a run that did not reach its last step."""
    return f"to go on from the newest checkpoint: {command}"

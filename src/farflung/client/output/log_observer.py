"""`LoggingObserver`: hands a run's numbers, configuration and outcome to a sink, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING

from farflung.client.output.configuration import configuration_of
from farflung.client.output.progress import Observer
from farflung.client.output.records import Outcome
from farflung.client.output.sinks import Happening, LogTo, Sink, in_one_line, open_sink
from farflung.errors import JobError
from farflung.text import count_of

if TYPE_CHECKING:
    from farflung.client.api.job import Job
    from farflung.client.output.records import StepRow
    from farflung.client.output.run_folder import RunFolder
    from farflung.client.output.run_record import RunRecord
    from farflung.protocol.messages import Planned
    from farflung.schedule import Unit

Warn = Callable[[str], None]
OPEN_SECONDS = 120.0
"""For how long a run waits for a service before it begins; W&B itself gives up after 90 s."""
CLOSE_SECONDS = 40.0
"""For how long a run that is over waits until a service has all of its log; trackio gives up after 30 s."""


class LoggingObserver(Observer):
    """Logs each step as `train/...` and each evaluation as `validation/...`.

    A sink that fails costs the run one warning, gets no more numbers, and is closed at the end all the same.
    The thread is a daemon, so a service that hangs cannot hold up the end of a program.

    Raises
    ------
    JobError
        `opened` does, or has not returned in time.
    """

    def __init__(self, opened: Callable[[], Sink], warn: Warn, open_seconds: float = OPEN_SECONDS) -> None:
        self._warn = warn
        self._rows: SimpleQueue[tuple[int, dict[str, float]] | Happening | None] = SimpleQueue()
        self._outcome = Outcome("cancelled", "the run did not begin")
        self._has_failed = False
        self._doing = ""
        self._closed: Future[None] = Future()
        self._closed.set_running_or_notify_cancel()  # from here on, none that waits can cancel it
        opening: Future[None] = Future()
        threading.Thread(target=self._work, args=(opened, opening), name="farflung-log", daemon=True).start()
        try:
            opening.result(open_seconds)
        except TimeoutError:
            self.close()  # should it open after all
            raise JobError(
                f"the service of --log has not answered within {open_seconds:g} s: check it, or use --log csv"
            ) from None

    def waiting(self, words: str) -> None:
        self._happens("waiting", words)

    def planned(self, planned: Planned) -> None:
        self._happens("planned", f"{planned.plan.replicas} x {len(planned.plan.placements)} segments")

    def loading(self, sent_bytes: int, total_bytes: int) -> None:
        self._happens("loading")

    def running(self) -> None:
        self._happens("training")

    def working(self, unit: Unit, microbatches: int) -> None:
        if not microbatches:
            self._happens("validating" if unit.evaluates else "training")

    def checkpointed(self, step: int, place: str) -> None:
        self._happens("checkpoint", f"after {step} steps")

    def noted(self, words: str) -> None:
        self._happens("note", words)

    def warned(self, words: str) -> None:
        self._happens("warning", words)

    def collecting(self, received_bytes: int, total_bytes: int) -> None:
        self._happens("collecting")

    def stepped(self, row: StepRow) -> None:
        found = {
            "loss": row.loss,
            "learning_rate": row.learning_rate,
            "gradient_norm": row.gradient_norm,
            "samples_per_second": row.samples_per_second,
            "bytes_on_wire": row.bytes_on_wire,
        }
        self._add(row.step, {f"train/{name}": value for name, value in found.items()})

    def validated(self, step: int, loss: float | None, metrics: Mapping[str, float]) -> None:
        self._add(step, {f"validation/{name}": value for name, value in {"loss": loss, **metrics}.items()})

    def ended(self, state: str, reason: str) -> None:
        self._outcome = Outcome(state, reason)

    def close(self) -> None:
        """Let the sink log the rest and end its own run; `wait` waits for that."""
        self._rows.put(None)

    def wait(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until the sink is closed; if it takes longer, give up what is left, and say so."""
        futures.wait([self._closed], seconds)
        self._give_up_after(seconds)

    async def wait_async(self) -> None:
        """As `wait`, on an event loop; if this is cancelled, what is left is given up at once."""
        began, closed = time.monotonic(), asyncio.wrap_future(self._closed)
        try:
            await asyncio.wait([closed], timeout=CLOSE_SECONDS)
        finally:
            closed.cancel()  # its loop may be closed by the time that the sink is
            self._give_up_after(time.monotonic() - began)

    def _give_up_after(self, seconds: float) -> None:
        if not self._closed.done():
            left = count_of(max(0, self._rows.qsize() - 1), "row")
            self._warn(
                f"warning: the log was not closed within {seconds:.2g} s and is given up: it may lack {left}"
                " and how the run ended; metrics.jsonl in the run folder has all of them"
            )

    def _happens(self, kind: str, words: str = "") -> None:
        """Pass it on, unless it is a thing that goes on."""
        if words or kind != self._doing:
            self._rows.put(Happening(time.time(), kind, words))
            self._doing = kind

    def _add(self, step: int, found: Mapping[str, float | None]) -> None:
        numbers = {name: float(value) for name, value in found.items() if value is not None}
        if numbers:
            self._rows.put((step, numbers))

    def _work(self, opened: Callable[[], Sink], opening: Future[None]) -> None:
        try:
            sink = opened()
        except BaseException as error:
            opening.set_exception(error)
            return
        opening.set_result(None)
        while (row := self._rows.get()) is not None:
            if self._has_failed:
                continue
            if isinstance(row, Happening):
                self._guard(lambda row=row: sink.tell(row))  # type: ignore[misc]
            else:
                self._guard(lambda row=row: sink.add(*row))  # type: ignore[misc]
        self._guard(lambda: sink.close(self._outcome))
        self._closed.set_result(None)

    def _guard(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # whatever the package raises: a log is no reason to lose a run
            if not self._has_failed:
                self._warn(f"warning: the log ends here, and the run goes on: {in_one_line(error)}")
            self._has_failed = True


def begin_log(log: LogTo, job: Job, folder: RunFolder, record: RunRecord, warn: Warn) -> LoggingObserver:
    """Open the log of a run; a resumed one goes on in the service's run that the run folder knows.

    Raises
    ------
    JobError
        The sink cannot be opened.
    """
    name = job.name or "job"
    key = f"{log.kind}:{log.where or name}"
    configuration = configuration_of(job, record)

    def opened() -> Sink:
        sink = None
        if earlier := folder.log_runs().get(key):
            try:
                sink = open_sink(log, folder.path, name, configuration, earlier)
            except JobError as error:
                warn(f"warning: {error}. So {log.kind} gets a new run, without the steps before")
        sink = sink or open_sink(log, folder.path, name, configuration)
        if sink.run_id:
            folder.add_log_run(key, sink.run_id)
        return sink

    return LoggingObserver(opened, warn)

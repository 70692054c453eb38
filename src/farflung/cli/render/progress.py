"""Progress on standard error.

`PlainObserver` follows a run for a log file or a pipe. `searching` and `moving_line` show what a long task is
doing, in one moving row on a terminal. `RemainingTime` estimates how much longer something takes.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from farflung.cli.render.output import loss_words, metric_words, note
from farflung.cli.render.plan import chosen_lines, plan_rows, planned_lines
from farflung.client.output.progress import Observer, goes_on
from farflung.client.output.records import StepRow
from farflung.protocol.messages import CodecsChosen, Planned
from farflung.protocol.submitter import UNTIL, had_and_needed, waits_for_more
from farflung.schedule import Unit
from farflung.text import count_of, format_bytes, format_clock, format_number

LEAST_REPORTS = 4
LEAST_SECONDS = 1.0
RECENT_SECONDS = 60.0
_KEPT = 400

_Span = tuple[float, float, float, float]
"""Time and progress of the first report that counts, then of the last."""


class RemainingTime:
    """Estimates the remaining time from reports of progress.

    The pace is a mean over the last minute, or over the later half of the elapsed time if that is longer. One
    slow step or an evaluation changes it little, but a link that became slower shows. The first report starts
    the count, so anything before it (such as a first step, which compiles and warms up) is ignored.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: deque[tuple[float, float]] = deque()
        self._began = 0.0
        self._span: _Span | None = None  # replaced as a whole, because another thread draws the terminal

    def came(self, done: float) -> None:
        """Record progress; a decrease restarts the estimate."""
        now = self._clock()
        if not self._reports or done < self._reports[-1][1]:
            self._reports.clear()
            self._began = now
        recent = max(RECENT_SECONDS, (now - self._began) / 2)
        if (
            len(self._reports) > LEAST_REPORTS
            and self._reports[-1][0] - self._reports[-2][0] < recent / _KEPT
        ):
            self._reports.pop()
        self._reports.append((now, done))
        while len(self._reports) > LEAST_REPORTS and self._reports[1][0] <= now - recent:
            self._reports.popleft()
        first, last = self._reports[0], self._reports[-1]
        is_known = len(self._reports) >= LEAST_REPORTS and last[0] - first[0] >= LEAST_SECONDS
        self._span = (*first, *last) if is_known and last[1] > first[1] else None

    def restart(self) -> None:
        """Begin to count anew: what was waited for before says nothing of the pace."""
        self._reports.clear()
        self._span = None

    def seconds(self, total: float) -> float | None:
        """Seconds until `total` is done; None while there are too few reports for an estimate."""
        if (span := self._span) is None:
            return None
        first_at, first, last_at, last = span
        left = (total - last) * (last_at - first_at) / (last - first)
        return max(0.0, left - (self._clock() - last_at))


PAUSE_SECONDS = 5.0


def advice_on(words: str, is_local: bool) -> str:
    """Advice for a job that waits for workers; empty for other messages, and where the run starts them.

    One that has run is not to begin again: it says until when it waits.
    """
    if is_local or not waits_for_more(words):
        return ""
    had, needed = had_and_needed(words)
    fewer = f" and start again with --workers {had}" if 0 < had < needed else ""
    more = "more workers" if needed > 1 else "a worker"
    stop = "" if UNTIL in words else f", or stop with Ctrl-C{fewer}"
    return f"start {more} with `farflung join`{stop}"


def returned_words(job: str, step: int) -> str:
    """The line that says that this process is a job's submitter again."""
    return f"back at {job}, of which {count_of(step, 'step')} are recorded"


def is_terminal() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr.isatty()


class _Pause:
    """A pause of a few seconds between messages, which restarts when it is over. The first ends at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock()

    def begin(self) -> None:
        """Restart the pause."""
        self._until = self._clock() + PAUSE_SECONDS

    def is_over(self) -> bool:
        """Whether the pause was over; if so, it restarts."""
        if self._clock() < self._until:
            return False
        self.begin()
        return True


class PlainObserver(Observer):
    """Prints each change of state at once, and progress every few seconds.

    It prints the first step, the last, and between them one every few seconds. It prints progress within a
    step or an evaluation only if that alone takes longer.
    """

    def __init__(
        self, steps: int, clock: Callable[[], float] = time.monotonic, is_local: bool = False
    ) -> None:
        self._steps, self._is_local = steps, is_local
        self._bytes, self._rows, self._unit = _Pause(clock), _Pause(clock), _Pause(clock)
        self._merges = _Pause(clock)
        self._search = _Pause(clock)
        self._waiting = ""
        self._remaining = RemainingTime(clock)

    def waiting(self, words: str) -> None:
        if goes_on(words, self._waiting):
            if self._search.is_over():
                note(words)
        elif words != self._waiting:
            self._waiting = words
            self._search.begin()
            note(words)
            if advice := advice_on(words, self._is_local):
                note(advice)

    def planned(self, planned: Planned) -> None:
        for row in plan_rows(planned.plan):
            note(
                f"segment {row.segment} on {row.worker}: {count_of(row.nodes, 'node')}, {row.parameters} of"
                f" parameters, {row.work} ({row.share} of the model) and {row.bytes_out} out a microbatch"
            )

        for line in planned_lines(planned):
            note(line)

    def loading(self, sent_bytes: int, total_bytes: int) -> None:
        if self._bytes.is_over() or sent_bytes == total_bytes:
            note(f"loading the workers: {format_bytes(sent_bytes)} of {format_bytes(total_bytes)}")

    def running(self) -> None:
        self._remaining.restart()
        note("running")

    def working(self, unit: Unit, microbatches: int) -> None:
        if microbatches == 0:
            self._unit.begin()
            if unit.merges:
                if self._merges.is_over():
                    note(f"merging the replicas after {unit.step} steps")
            elif not unit.train:
                how = ", with all links dense" if unit.plain else ""
                size = count_of(unit.microbatches, "microbatch", "microbatches")
                note(f"validating after {unit.step} steps on {size}{how}")
        elif self._unit.is_over():
            what = f"step {unit.step + 1}/{self._steps}" if unit.train else "validating"
            note(f"{what}: {microbatches} of {unit.microbatches} microbatches")

    def stepped(self, row: StepRow) -> None:
        self._remaining.came(row.step)
        if not self._rows.is_over() and row.step != self._steps:
            return
        words = f"step {row.step}/{self._steps}  loss {loss_words(row.loss)}"
        if row.samples_per_second is not None:
            words += f"  {format_number(row.samples_per_second)} samples/s"
        if row.bytes_on_wire is not None:
            words += f"  {format_bytes(row.bytes_on_wire)} a step"
        left = self._remaining.seconds(self._steps)
        note(words if not left else f"{words}  about {format_clock(left)} left")

    def validated(self, step: int, loss: float | None, metrics: Mapping[str, float]) -> None:
        words = f"validation loss after {step} steps: {loss_words(loss)}"
        note(words + metric_words(metrics))

    def checkpointed(self, step: int, place: str) -> None:
        note(f"checkpoint of step {step} saved in {place}")

    def noted(self, words: str) -> None:
        note(words)

    def warned(self, words: str) -> None:
        note(f"warning: {words}")

    def returned(self, job: str, step: int) -> None:
        note(returned_words(job, step))

    def codecs_chosen(self, chosen: CodecsChosen) -> None:
        for line in chosen_lines(chosen):
            note(line)

    def collecting(self, received_bytes: int, total_bytes: int) -> None:
        if self._bytes.is_over() or received_bytes == total_bytes:
            note(f"collecting the weights: {format_bytes(received_bytes)} of {format_bytes(total_bytes)}")

    def evaluating(self, words: str) -> None:
        note(f"{words} on this machine")


@contextmanager
def searching() -> Iterator[Callable[[str], None]]:
    """Yield a function that prints the current activity."""
    stream = sys.stderr  # kept, because sys.stderr may be replaced meanwhile
    if is_terminal():
        with moving_line() as tell:
            yield tell
        return
    said: list[str] = []

    def once(words: str) -> None:
        phase = words if words.startswith("what if, ") else words.partition(":")[0]
        if phase not in said:
            said.append(phase)
            print(phase, file=stream, flush=True)

    yield once


@contextmanager
def moving_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current activity beside a clock; the row is removed at the end."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    shown = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    # What a job file prints belongs on standard output.
    with Progress(*shown, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as progress:
        task = progress.add_task("", total=None)
        yield lambda words: progress.update(task, description=words)

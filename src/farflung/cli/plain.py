"""A run for a log file or a pipe: a plain line now and then, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from farflung.cli.output import loss_words, note
from farflung.cli.plan_table import chosen_lines, plan_rows, planned_lines
from farflung.cli.remaining import Remaining
from farflung.client.observer import Observer
from farflung.client.records import StepRow
from farflung.client.telling import goes_on
from farflung.protocol.messages import CodecsChosen, Planned
from farflung.protocol.submitter import waits_for_more
from farflung.schedule import Unit
from farflung.text import count_of, format_bytes, format_clock, format_number

PAUSE_SECONDS = 5.0


def advice_on(words: str) -> str:
    """What to do where a job waits for workers, whom nobody else may send; otherwise nothing."""
    if not waits_for_more(words):
        return ""
    return (
        "it waits until they `farflung join` this broker; Ctrl-C gives up, and fewer --workers need no more"
    )


def is_terminal() -> bool:
    """Whether a person watches standard error."""
    return sys.stderr.isatty()


class _Pause:
    """Is over a few seconds after it began; then it begins anew. The first is over at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock()

    def begin(self) -> None:
        """Begin anew, over or not."""
        self._until = self._clock() + PAUSE_SECONDS

    def is_over(self) -> bool:
        """Whether it was; it has then begun anew."""
        if self._clock() < self._until:
            return False
        self.begin()
        return True


class PlainObserver(Observer):
    """Says each change of state at once, and progress every few seconds.

    A step is told when it is done: the first, the last, and between them one every few seconds. How far a
    step or an evaluation is, only where it alone takes longer than that.
    """

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps = steps
        self._bytes, self._rows, self._unit = _Pause(clock), _Pause(clock), _Pause(clock)
        self._search = _Pause(clock)
        self._waiting = ""
        self._remaining = Remaining(clock)

    def waiting(self, words: str) -> None:
        if goes_on(words, self._waiting):
            if self._search.is_over():
                note(words)
        elif words != self._waiting:
            self._waiting = words
            self._search.begin()
            note(words)
            if advice := advice_on(words):
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
        note("running")

    def working(self, unit: Unit, microbatches: int) -> None:
        if microbatches == 0:
            self._unit.begin()
            if not unit.train:
                note(f"validating after {unit.step} steps")
        elif self._unit.is_over():
            what = f"step {unit.step + 1}/{self._steps}" if unit.train else "validating"
            note(f"{what}: {microbatches} of {unit.microbatches} microbatches")

    def stepped(self, row: StepRow) -> None:
        self._remaining.came(row.step)
        if not self._rows.is_over() and row.step != self._steps:
            return
        words = (
            f"step {row.step}/{self._steps}  loss {loss_words(row.loss)}"
            f"  {format_number(row.samples_per_second)} samples/s  {format_bytes(row.bytes_on_wire)} a step"
        )
        left = self._remaining.seconds(self._steps)
        note(words if not left else f"{words}  about {format_clock(left)} left")

    def validated(self, step: int, loss: float | None) -> None:
        note(f"validation loss after {step} steps: {loss_words(loss)}")

    def warned(self, words: str) -> None:
        note(f"warning: {words}")

    def codecs_chosen(self, chosen: CodecsChosen) -> None:
        for line in chosen_lines(chosen):
            note(line)

    def collecting(self, received_bytes: int, total_bytes: int) -> None:
        if self._bytes.is_over() or received_bytes == total_bytes:
            note(f"collecting the weights: {format_bytes(received_bytes)} of {format_bytes(total_bytes)}")

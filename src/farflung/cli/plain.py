"""A run for a log file or a pipe: a plain line now and then, on standard error."""

from __future__ import annotations

import sys
import time

from farflung.cli.output import counted, duration, loss_words, note, size
from farflung.cli.plan_table import plan_rows, planned_lines
from farflung.client.observer import Observer
from farflung.client.records import StepRow
from farflung.protocol.messages import Planned
from farflung.schedule import Unit

PAUSE_SECONDS = 5.0


def is_terminal() -> bool:
    """Whether a person watches standard error."""
    return sys.stderr.isatty()


class PlainObserver(Observer):
    """Says each change of state at once, and progress every few seconds."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._said_at = 0.0
        self._waiting = ""

    def waiting(self, words: str) -> None:
        if words != self._waiting:
            self._waiting = words
            note(words)

    def planned(self, planned: Planned) -> None:
        for segment, worker, nodes, parameters, flops, bytes_out in plan_rows(planned.plan):
            note(
                f"segment {segment} on {worker}: {counted(int(nodes), 'node')}, {parameters} of parameters,"
                f" {flops} MFLOP, {bytes_out} out a microbatch"
            )

        for line in planned_lines(planned):
            note(line)

    def loading(self, sent_bytes: int, total_bytes: int) -> None:
        if self._due() or sent_bytes == total_bytes:
            note(f"loading the workers: {size(sent_bytes)} of {size(total_bytes)}")

    def running(self) -> None:
        note("running")

    def working(self, unit: Unit, microbatches: int) -> None:
        if not unit.train and microbatches == 0:
            note(f"validating after {unit.step} steps")
        elif self._due():
            what = f"step {unit.step + 1}/{self._steps}" if unit.train else "validating"
            note(f"{what}: {microbatches} of {unit.microbatches} microbatches")

    def stepped(self, row: StepRow) -> None:
        if not self._due() and row.step != self._steps:
            return
        left = duration((self._steps - row.step) * row.seconds)
        note(
            f"step {row.step}/{self._steps}  loss {loss_words(row.loss)}"
            f"  {row.samples_per_second:.1f} samples/s  {size(row.bytes_on_wire)} a step  about {left} left"
        )

    def validated(self, step: int, loss: float | None) -> None:
        note(f"validation loss after {step} steps: {loss_words(loss)}")

    def collecting(self, received_bytes: int, total_bytes: int) -> None:
        if self._due() or received_bytes == total_bytes:
            note(f"collecting the weights: {size(received_bytes)} of {size(total_bytes)}")

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._said_at < PAUSE_SECONDS:
            return False
        self._said_at = now
        return True

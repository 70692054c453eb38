"""`Metrics`: the steps of a run as they come, for the thread that started it."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from farflung.client.output.progress import Observer
from farflung.client.output.records import StepRow
from farflung.text import count_of


class Validation(NamedTuple):
    """An evaluation after `step` steps, with the job's metrics; on emulated devices `loss` is None."""

    step: int
    loss: float | None
    metrics: Mapping[str, float] = {}


class Metrics:
    """The applied steps of a run, one row each, while it trains.

    `for row in run.metrics` gives each step once, waits for the next one, and ends with the run. Several such
    loops may go on at once, in any threads but those of the run's own callbacks and observer.
    """

    def __init__(self, require_can_wait: Callable[[], None] = lambda: None) -> None:
        self._require_can_wait = require_can_wait
        self._changed = threading.Condition()
        self._rows: list[StepRow] = []
        self._validations: list[Validation] = []
        self._is_over = False

    @property
    def latest(self) -> StepRow | None:
        """The newest row; None before the first step."""
        with self._changed:
            return self._rows[-1] if self._rows else None

    @property
    def rows(self) -> list[StepRow]:
        """The rows so far, in order.

        A run that went back to an earlier state has only the rows that count. A resumed run begins with the
        first step after its checkpoint; `metrics.jsonl` in its folder has the earlier ones, too.
        """
        with self._changed:
            return list(self._rows)

    @property
    def validations(self) -> list[Validation]:
        """The evaluations so far, in order."""
        with self._changed:
            return list(self._validations)

    def __iter__(self) -> Iterator[StepRow]:
        """Give each step once, in order, as soon as it is applied, until the run is over.

        A step that is done again, after a lost worker, is not given again; `rows` has what counts.

        Raises
        ------
        JobError
            A callback or the observer of the run waits here, which would never end.
        """
        step = 0
        while (row := self._after(step)) is not None:
            yield row
            step = row.step

    def __repr__(self) -> str:
        row, count = self.latest, len(self.rows)
        if row is None:
            return "<Metrics: no step yet>"
        loss = "" if row.loss is None else f", loss {row.loss:.4f}"
        return f"<Metrics: {count_of(count, 'row')}, the newest of step {row.step}{loss}>"

    def add(self, row: StepRow) -> None:
        """Add the row of a step, which takes the place of those of this step and later ones."""
        with self._changed:
            while self._rows and self._rows[-1].step >= row.step:
                self._rows.pop()
            while self._validations and self._validations[-1].step >= row.step:
                self._validations.pop()
            self._rows.append(row)
            self._changed.notify_all()

    def add_validation(
        self, step: int, loss: float | None, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Add an evaluation, which takes the place of one after the same step."""
        with self._changed:
            while self._validations and self._validations[-1].step >= step:
                self._validations.pop()
            self._validations.append(Validation(step, loss, metrics or {}))

    def end(self) -> None:
        """No row follows: the run is over."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _after(self, step: int) -> StepRow | None:
        """The first row after that step, once it is there; None if the run ends before."""
        with self._changed:
            while not self._rows or self._rows[-1].step <= step:
                if self._is_over:
                    return None
                self._require_can_wait()
                self._changed.wait()
            return self._rows[bisect_right(self._rows, step, key=lambda row: row.step)]


class MetricsCollector(Observer):
    """Adds what a run reports to `metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def stepped(self, row: StepRow) -> None:
        self._metrics.add(row)

    def validated(self, step: int, loss: float | None, metrics: Mapping[str, float]) -> None:
        self._metrics.add_validation(step, loss, metrics)

"""`Metrics`: the steps of a run as they come, for the thread that started it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, overload

from farflung.client.output.progress import Observer
from farflung.client.output.records import StepRow


class Validation(NamedTuple):
    """An evaluation after `step` steps, with the job's metrics; on emulated devices `loss` is None."""

    step: int
    loss: float | None
    metrics: Mapping[str, float] = {}


class Metrics(Sequence[StepRow]):
    """The applied steps of a run, in order, one row each: a sequence that grows while the run trains.

    A run that went back to an earlier state has only the rows that count. A resumed run begins with the
    first step after its checkpoint; `metrics.jsonl` in its folder has the earlier ones, too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: list[StepRow] = []
        self._validations: list[Validation] = []

    @property
    def latest(self) -> StepRow | None:
        """The newest row; None before the first step."""
        with self._lock:
            return self._rows[-1] if self._rows else None

    @property
    def validations(self) -> list[Validation]:
        """The evaluations so far, in order."""
        with self._lock:
            return list(self._validations)

    @overload
    def __getitem__(self, index: int) -> StepRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[StepRow]: ...
    def __getitem__(self, index: int | slice) -> StepRow | list[StepRow]:
        with self._lock:
            return self._rows[index]

    def __len__(self) -> int:
        with self._lock:
            return len(self._rows)

    def __iter__(self) -> Iterator[StepRow]:
        with self._lock:
            return iter(list(self._rows))

    def __repr__(self) -> str:
        row = self.latest
        if row is None:
            return "<Metrics: no step yet>"
        loss = "" if row.loss is None else f", loss {row.loss:.4f}"
        return f"<Metrics: {len(self)} rows, the newest of step {row.step}{loss}>"

    def add(self, row: StepRow) -> None:
        """Add the row of a step, which takes the place of those of this step and later ones."""
        with self._lock:
            while self._rows and self._rows[-1].step >= row.step:
                self._rows.pop()
            while self._validations and self._validations[-1].step >= row.step:
                self._validations.pop()
            self._rows.append(row)

    def add_validation(
        self, step: int, loss: float | None, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Add an evaluation, which takes the place of one after the same step."""
        with self._lock:
            while self._validations and self._validations[-1].step >= step:
                self._validations.pop()
            self._validations.append(Validation(step, loss, metrics or {}))


class MetricsCollector(Observer):
    """Adds what a run reports to `metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def stepped(self, row: StepRow) -> None:
        self._metrics.add(row)

    def validated(self, step: int, loss: float | None, metrics: Mapping[str, float]) -> None:
        self._metrics.add_validation(step, loss, metrics)

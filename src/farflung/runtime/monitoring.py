"""What evaluations of a job decide: whether it stops early, and which weights are the best. Pure.

The broker decides by `after`, so a run ends at the same step on whichever workers it trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from farflung.opdag.graph import ValueId

Mode = Literal["min", "max"]


class Monitor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is compared of each evaluation: `metric`, with its `values` of the graph; none: the loss.

    With `mode` "min" less is better. A value is better than the best so far only by more than `min_delta`.
    The job ends after `patience` evaluations in a row without a better one (None: never). If it `keeps` the
    best weights, they are copied to the submitter. Evaluations before the first step do not count.
    """

    metric: Annotated[str, Meta(min_length=1, max_length=256)] = "loss"
    values: Annotated[tuple[ValueId, ...], Meta(max_length=2)] = ()
    mode: Mode = "min"
    min_delta: Annotated[float, Meta(ge=0.0)] = 0.0
    patience: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    keeps: bool = False

    def compares_as(self, other: Monitor) -> bool:
        """Whether what one has found holds for the other, too."""
        return (self.metric, self.values, self.mode) == (other.metric, other.values, other.mode)


class Monitored(msgspec.Struct, frozen=True, array_like=True):
    """What a monitor has found: the `best` value (None before any), that of the weights of `step`.

    `waited` evaluations followed it.
    """

    best: float | None = None
    step: Annotated[int, Meta(ge=0)] = 0
    waited: Annotated[int, Meta(ge=0)] = 0

    def after(self, monitor: Monitor, step: int, value: float) -> Monitored:
        """What is known after an evaluation of the weights of `step`; NaN and infinity are no better."""
        if math.isfinite(value) and self._is_beaten(monitor, value):
            return Monitored(value, step, 0)
        return Monitored(self.best, self.step, self.waited + 1)

    def is_over(self, monitor: Monitor) -> bool:
        """Whether the job ends."""
        return monitor.patience is not None and self.waited >= monitor.patience

    def why_over(self, monitor: Monitor) -> str:
        """Why the job ends, in one line."""
        evaluations = "evaluation" if self.waited == 1 else "evaluations"
        if self.best is None:
            return f"stopped early: {monitor.metric} was not finite in {self.waited} {evaluations}"
        verb = "fallen below" if monitor.mode == "min" else "risen above"
        return (
            f"stopped early: {monitor.metric} has not {verb} {self.best:.6g}, that of step {self.step}, in"
            f" {self.waited} {evaluations}"
        )

    def _is_beaten(self, monitor: Monitor, value: float) -> bool:
        if self.best is None:
            return True
        gain = self.best - value if monitor.mode == "min" else value - self.best
        return gain > monitor.min_delta


def after(
    monitors: Sequence[Monitor],
    known: Sequence[Monitored],
    step: int,
    loss: float,
    sums: Mapping[int, float],
    microbatches: int,
) -> tuple[Monitored, ...]:
    """What all monitors have found after an evaluation with this loss and these sums of metrics."""
    return tuple(
        one.after(monitor, step, mean_of(monitor.values, sums, microbatches) if monitor.values else loss)
        for monitor, one in zip(monitors, known, strict=True)
    )


def mean_of(values: Sequence[int], sums: Mapping[int, float], microbatches: int) -> float:
    """A metric over a whole evaluation: a sum over its count, or the mean of means; NaN if it has none."""
    if not sums.keys() >= {*values}:
        return math.nan
    total, *count = (sums[value] for value in values)
    divisor = count[0] if count else microbatches
    return total / divisor if divisor else math.nan

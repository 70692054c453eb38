"""`EarlyStopping` and `KeepBest`: what a job lets its evaluations decide."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farflung.errors import JobError
from farflung.metrics import Accuracy, Perplexity
from farflung.runtime.monitoring import Mode, Monitor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farflung.client.api.job import Job

LOSS = "loss"
MOST_PATIENCE = 10**9


@dataclass(frozen=True)
class EarlyStopping:
    """End the run after `patience` evaluations in a row that found nothing better.

    The broker decides it with the evaluation, so no step is trained after it, on whichever workers. The
    evaluation before the first step does not count, and one that is not finite is no better.

    Parameters
    ----------
    patience
        How many evaluations; at least 1.
    metric
        "loss", or the name of one in `Job(metrics=)`.
    mode
        "min" if less is better, "max" if more. None: "max" for `farflung.metrics.Accuracy`, "min" for loss
        and perplexity; metrics of your own need it.
    min_delta
        A value is better only if it is so by more than this.

    Raises
    ------
    JobError
        A number or `mode` is out of range; `Job` also refuses metrics that it does not have.
    """

    patience: int = 3
    metric: str = LOSS
    mode: Mode | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        patience, delta = self.patience, self.min_delta
        if isinstance(patience, bool) or not isinstance(patience, int) or not 1 <= patience <= MOST_PATIENCE:
            raise JobError(f"patience must be a whole number from 1 to {MOST_PATIENCE}, found {patience!r}")
        if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 <= delta < math.inf:
            raise JobError(f"min_delta must be a number that is not negative, found {delta!r}")
        _require_mode(self.mode)


@dataclass(frozen=True)
class KeepBest:
    """Let the run end with the weights of its best evaluation instead of the last ones.

    Parameters
    ----------
    metric, mode
        As in `EarlyStopping`.
    """

    metric: str = LOSS
    mode: Mode | None = None

    def __post_init__(self) -> None:
        _require_mode(self.mode)


def require_monitors(job: Job) -> None:
    """Raise JobError if the job's evaluations cannot decide what it wants of them."""
    stopping, keeping = job.stop_early, job.keep_best
    if stopping is not None and not isinstance(stopping, EarlyStopping):
        raise JobError(f"stop_early must be farflung.EarlyStopping(...) or None, found {stopping!r:.60}")
    if not isinstance(keeping, bool | KeepBest):
        raise JobError(f"keep_best must be True, False or farflung.KeepBest(...), found {keeping!r:.60}")
    for name, asked in _asked(job).items():
        if job.validation is None or job.validate_every is None:
            lacking = "validation" if job.validation is None else "validate_every"
            raise JobError(f"{name} goes by evaluations during the run: give Job({lacking}=)")
        _mode_of(job, name, asked)


def monitors_of(job: Job, values: Mapping[str, Sequence[int]]) -> tuple[Monitor, ...]:
    """The monitors of a job whose metrics are these values of its graph.

    One that goes by perplexity compares the loss, and says so: the best of one is the best of the other.
    """
    metrics = job.metrics or {}
    return tuple(
        Monitor(
            LOSS if isinstance(metrics.get(asked.metric), Perplexity) else asked.metric,
            tuple(values.get(asked.metric, ())),
            _mode_of(job, name, asked),
            float(asked.min_delta) if isinstance(asked, EarlyStopping) else 0.0,
            asked.patience if isinstance(asked, EarlyStopping) else None,
            isinstance(asked, KeepBest),
        )
        for name, asked in _asked(job).items()
    )


def _asked(job: Job) -> dict[str, EarlyStopping | KeepBest]:
    """What the job declares, by the names of its fields. True keeps what `stop_early` goes by."""
    stopping, keeping = job.stop_early, job.keep_best
    if keeping is True:
        keeping = KeepBest() if stopping is None else KeepBest(stopping.metric, stopping.mode)
    asked = {"stop_early": stopping, "keep_best": keeping or None}
    return {name: one for name, one in asked.items() if one is not None}


def _mode_of(job: Job, name: str, asked: EarlyStopping | KeepBest) -> Mode:
    metrics: Mapping[str, Any] = job.metrics or {}
    if asked.metric != LOSS and asked.metric not in metrics:
        known = ", ".join(map(repr, (LOSS, *metrics)))
        raise JobError(f"{name} goes by {asked.metric!r}, which the job does not measure; there is {known}")
    metric = metrics.get(asked.metric)
    if isinstance(metric, Perplexity) and isinstance(asked, EarlyStopping) and asked.min_delta:
        raise JobError("perplexity is the exponential of the loss: give min_delta for metric='loss'")
    if asked.mode is not None:
        return asked.mode
    if asked.metric == LOSS or isinstance(metric, Perplexity):
        return "min"
    if isinstance(metric, Accuracy):
        return "max"
    raise JobError(f"say whether more {asked.metric!r} is better: {name} needs mode='max' or mode='min'")


def _require_mode(mode: object) -> None:
    if mode not in (None, "min", "max"):
        raise JobError(f"mode must be 'min', 'max' or None, found {mode!r}")

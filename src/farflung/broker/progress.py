"""Which unit follows another, without walking the whole sequence of a long job."""

from __future__ import annotations

from farflung.runtime.training import Training
from farflung.schedule import Unit


def next_unit(training: Training, after: Unit | None) -> Unit | None:
    """The unit after `after` (None: the first) in `training.units()`; None when that was the last."""
    number = 0 if after is None else after.number + 1
    step = 0 if after is None else after.step + after.train
    evaluated = after is not None and not after.train
    if after is not None and evaluated and training.validate_twice and not after.plain:
        return after._replace(number=number, plain=True)
    if not evaluated and _evaluates(training, step):
        return Unit(number, False, step, training.validation_microbatches)
    if step < training.steps:
        return Unit(number, True, step, training.microbatches)
    return None


def _evaluates(training: Training, step: int) -> bool:
    every = training.validate_every
    due = step in (0, training.steps) or (every is not None and step % every == 0)
    return training.validation_microbatches > 0 and due

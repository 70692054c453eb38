"""Units of work in the order a job runs them: training steps, with evaluation passes between commits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple


class Unit(NamedTuple):
    """One unit: a training step (`train`), or a forward-only pass over the validation set.

    `number` counts all units of a job from 0; `step` is the number of steps applied before this unit. In a
    `plain` pass every link is dense, whatever its codec pair is otherwise.
    """

    number: int
    train: bool
    step: int
    microbatches: int
    plain: bool = False


@dataclass(frozen=True)
class Units:
    """Every unit of a job, in order; any of them is computed directly.

    With `validation_microbatches` > 0 the model is evaluated before the first step, after the last one and,
    if `validate_every` is given, after each `validate_every` steps. With `validate_twice` each such pass is
    followed by a plain one.
    """

    steps: int
    microbatches: int
    validate_every: int | None = None
    validation_microbatches: int = 0
    validate_twice: bool = False

    def at(self, number: int) -> Unit | None:
        """Unit `number`, from 0; None if the job has no such unit."""
        passes, every = self._passes, self._every
        blocks = -(-self.steps // every)  # of some passes and then at most `every` steps
        last_passes = self.steps + blocks * passes
        block, place = divmod(number, passes + every)
        step = block * every + max(0, place - passes)
        if number >= last_passes:
            step, place = self.steps, number - last_passes
        if number < 0 or (step == self.steps and place >= passes):
            return None
        if place < passes:
            return Unit(number, False, step, self.validation_microbatches, plain=place == 1)
        return Unit(number, True, step, self.microbatches)

    def after(self, step: int, evaluated: bool = True) -> int | None:
        """The number of the unit after `step` steps and their evaluation; None if no such unit is left.

        That is the training unit that begins at this step, behind any pass over the validation set; or the
        first such pass if the weights of this step are not `evaluated` yet.
        """
        if not 0 <= step < self.steps:
            return None
        number = step + self._passes * (step // self._every + 1)
        return number if evaluated or step % self._every else number - self._passes

    def since(self, first: int) -> Iterator[Unit]:
        """The units from number `first` on."""
        for number in count(first):
            unit = self.at(number)
            if unit is None:
                return
            yield unit

    def __iter__(self) -> Iterator[Unit]:
        return self.since(0)

    @property
    def _passes(self) -> int:
        """Passes over the validation set in each evaluation."""
        return 1 + self.validate_twice if self.validation_microbatches else 0

    @property
    def _every(self) -> int:
        """Steps between two evaluations."""
        return min(self.validate_every or self.steps, self.steps)


class UnitWindow:
    """The units of a job from the current one on, which at first is number `first`."""

    def __init__(self, units: Units, first: int = 0) -> None:
        self._units = units
        self.current = first

    def get(self, number: int) -> Unit | None:
        """Unit `number`; None if it is over or the job has no such unit."""
        return self._units.at(number) if number >= self.current else None

    def advance(self) -> None:
        """Go on to the next unit."""
        self.current += 1

"""Units of work in the order a job runs them: training steps, with evaluations and merges between commits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple


class Unit(NamedTuple):
    """One unit: a training step (`train`), a forward-only pass over the validation set, or a *merge*.

    `number` counts all units of a job from 0; `step` is the number of steps applied before this unit. In a
    `plain` pass every link is dense, whatever its codec pair is otherwise.

    In a job whose pipelines train apart, one that `merges` has no microbatches: it brings their parameters
    together. Those that are `alone` concern the first pipeline only: it runs all microbatches, or the others
    take over its parameters.
    """

    number: int
    train: bool
    step: int
    microbatches: int
    plain: bool = False
    merges: bool = False
    alone: bool = False

    @property
    def evaluates(self) -> bool:
        """Whether it is a pass over the validation set."""
        return not self.train and not self.merges


class Rounds(NamedTuple):
    """When the pipelines of a job that train apart merge: after each `inner_steps` steps, and after the last.

    In the first `warmup` steps only the first pipeline trains, and then the others take over its parameters.
    """

    inner_steps: int
    warmup: int = 0

    def merges_after(self, step: int) -> bool:
        """Whether there is a merge once `step` steps are applied, if the job goes on."""
        apart = step - self.warmup
        return (apart > 0 and apart % self.inner_steps == 0) or (apart == 0 and step > 0)

    def merges_before(self, step: int) -> int:
        """How many merges there are before that many steps are applied."""
        return (0 < self.warmup < step) + max(0, step - 1 - self.warmup) // self.inner_steps


@dataclass(frozen=True)
class Units:
    """Every unit of a job, in order; any of them is computed directly.

    With `validation_microbatches` > 0 the model is evaluated before the first step, after the last one and,
    if `validate_every` is given, after each `validate_every` steps. With `validate_twice` each such pass is
    followed by a plain one; with `validate_plain` it is plain itself. Without `validate_first` there is none
    before the first step. With `rounds`, merges come before evaluations of the same step.
    """

    steps: int
    microbatches: int
    validate_every: int | None = None
    validation_microbatches: int = 0
    validate_twice: bool = False
    rounds: Rounds | None = None
    validate_plain: bool = False
    validate_first: bool = True

    def at(self, number: int) -> Unit | None:
        """Unit `number`, from 0; None if the job has no such unit."""
        if number < 0:
            return None
        step = bisect_right(range(self.steps + 1), number, key=self._first_of) - 1
        place = number - self._first_of(step) - self._merges(step)
        if place < 0:
            assert self.rounds is not None
            return Unit(number, False, step, 0, merges=True, alone=step == self.rounds.warmup)
        passes = self._passes_of(step)
        if place < passes:
            apart = self.rounds is not None and step > 0 and not self._merges(step)
            plain = place == 1 or self.validate_plain
            return Unit(number, False, step, self.validation_microbatches, plain, alone=apart)
        if place > passes or step == self.steps:
            return None
        alone = self.rounds is not None and step < self.rounds.warmup
        return Unit(number, True, step, self.microbatches, alone=alone)

    def after(self, step: int, evaluated: bool = True, merged: bool = True) -> int | None:
        """The number of the unit after `step` steps and their evaluation; None if no such unit is left.

        That is the training unit that begins at this step, behind any pass over the validation set; or the
        first such pass if the weights of this step are not `evaluated` yet. Both are behind its merge, with
        which it begins if replicas have not `merged` yet.
        """
        if not merged and 0 <= step <= self.steps and self._merges(step):
            return self._first_of(step)
        if not 0 <= step < self.steps:
            return None
        number = self._first_of(step) + self._merges(step)
        return number + self._passes_of(step) if evaluated else number

    def since(self, first: int) -> Iterator[Unit]:
        """The units from number `first` on."""
        for number in count(first):
            unit = self.at(number)
            if unit is None:
                return
            yield unit

    def __iter__(self) -> Iterator[Unit]:
        return self.since(0)

    def ends_step(self, unit: Unit) -> bool:
        """Whether it ends a step: it trains or merges, and no merge of the same step is behind it."""
        return unit.merges or (unit.train and not self._merges(unit.step + 1))

    def _first_of(self, step: int) -> int:
        """The number of the first unit once `step` steps are applied."""
        evaluations = -(-step // self._every) if self.validation_microbatches else 0
        evaluations -= bool(evaluations) and not self.validate_first
        merges = 0 if self.rounds is None else self.rounds.merges_before(step)
        return step + evaluations * self._passes + merges

    def _passes_of(self, step: int) -> int:
        """How many evaluations follow once `step` steps are applied."""
        if not step and not self.validate_first:
            return 0
        return self._passes if step == self.steps or step % self._every == 0 else 0

    def _merges(self, step: int) -> int:
        """How many merges follow once `step` steps are applied: one or none."""
        return self.rounds is not None and (step == self.steps or self.rounds.merges_after(step))

    @property
    def evaluations(self) -> int:
        """How many times the model is evaluated."""
        if not self.validation_microbatches:
            return 0
        return -(-self.steps // self._every) + self.validate_first

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

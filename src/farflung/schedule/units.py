"""Units of work in the order a job runs them: training steps, with evaluation passes between commits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
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


def unit_sequence(
    steps: int,
    microbatches: int,
    validate_every: int | None,
    validation_microbatches: int,
    validate_twice: bool = False,
) -> Iterator[Unit]:
    """Every unit of a job in order.

    With `validation_microbatches` > 0 the model is evaluated before the first step, after the last one and,
    if `validate_every` is given, after each `validate_every` steps. With `validate_twice` each such pass is
    followed by a plain one.
    """
    number = 0
    for step in range(steps + 1):
        due = step in (0, steps) or (validate_every is not None and step % validate_every == 0)
        if validation_microbatches and due:
            for plain in (False, True)[: 1 + validate_twice]:
                yield Unit(number, False, step, validation_microbatches, plain)
                number += 1
        if step < steps:
            yield Unit(number, True, step, microbatches)
            number += 1


class UnitWindow:
    """The units of a job from the current one on, created on demand."""

    def __init__(self, units: Iterator[Unit]) -> None:
        self._units = units
        self._made: deque[Unit] = deque()
        self.current = 0

    def get(self, number: int) -> Unit | None:
        """Unit `number`; None if it is over or the job has no such unit."""
        while number >= self.current + len(self._made):
            unit = next(self._units, None)
            if unit is None:
                return None
            self._made.append(unit)
        return self._made[number - self.current] if number >= self.current else None

    def advance(self) -> None:
        """Go on to the next unit."""
        self.get(self.current)
        if self._made:
            self._made.popleft()
        self.current += 1

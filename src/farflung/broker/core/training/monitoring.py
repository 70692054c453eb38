"""What a job's monitors have found, and how that goes back with the job. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from farflung.runtime.monitoring import Monitored, after
from farflung.runtime.training import Training
from farflung.schedule import Unit


@dataclass(frozen=True)
class Finding:
    """What each monitor has found once `unit` is decided."""

    unit: int
    states: tuple[Monitored, ...]


@dataclass(frozen=True)
class Monitoring:
    """What the monitors of one job have found, after each evaluation that the job may go back behind."""

    found: tuple[Finding, ...] = ()

    @classmethod
    def of(cls, training: Training, unit: int, known: Sequence[Monitored]) -> Monitoring:
        """That of a job which begins at `unit`, whose monitors have found this before."""
        states = tuple(known) or tuple(Monitored() for _ in training.monitors)
        return cls((Finding(unit - 1, states),)) if states else cls()

    @property
    def states(self) -> tuple[Monitored, ...]:
        """What the monitors have found up to now."""
        return self.found[-1].states if self.found else ()

    def as_of(self, unit: int) -> tuple[Monitored, ...]:
        """What they had found once `unit` was decided."""
        known = [found.states for found in self.found if found.unit <= unit]
        return known[-1] if known else ()

    def after(
        self, training: Training, unit: Unit, loss: float, sums: Mapping[int, float]
    ) -> tuple[Monitored, ...]:
        """What they have found once this unit is decided, with this loss and these sums of its metrics."""
        if not unit.evaluates or not unit.step or (training.validate_twice and not unit.plain):
            return self.states
        return after(training.monitors, self.states, unit.step, loss, sums, unit.microbatches)

    def decided(
        self, unit: int, states: tuple[Monitored, ...], returns_to: Collection[int] = ()
    ) -> Monitoring:
        """This once `unit` is decided, from which the job can go back to `returns_to` and to no others."""
        if states == self.states:
            return self
        units = [one.unit for one in self.found]
        newest = {max((known for known in units if known < back), default=None) for back in returns_to}
        return Monitoring((*(one for one in self.found if one.unit in newest), Finding(unit, states)))

    def rolled_back(self, unit: int) -> Monitoring:
        """This once the job has gone back to `unit`."""
        return Monitoring(tuple(found for found in self.found if found.unit < unit))

    def lost(self, training: Training, unit: int | None) -> Monitoring:
        """This once the copy after `unit` is lost: the best weights are then those that came before."""
        if unit is None or not self.found or (before := self.as_of(unit - 1)) == self.as_of(unit):
            return self
        pairs = zip(training.monitors, before, self.states, strict=True)
        states = tuple(earlier if monitor.keeps else now for monitor, earlier, now in pairs)
        return Monitoring((*self.found[:-1], replace(self.found[-1], states=states)))


def is_over(training: Training, states: Sequence[Monitored]) -> str:
    """Why a job ends early, in one line; empty if it does not."""
    pairs = zip(training.monitors, states, strict=False)
    return next((state.why_over(monitor) for monitor, state in pairs if state.is_over(monitor)), "")


def is_best(training: Training, before: Sequence[Monitored], states: Sequence[Monitored]) -> bool:
    """Whether an evaluation has found better weights than those that are kept."""
    found = zip(training.monitors, before, states, strict=False)
    return any(monitor.keeps and earlier.step != now.step for monitor, earlier, now in found)

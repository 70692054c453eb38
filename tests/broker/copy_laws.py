"""The laws of copies of a job's state, checked from facts alone."""

from __future__ import annotations

from collections.abc import Iterable

from farflung.broker.core import facts


def check_copies(history: Iterable[facts.Fact]) -> None:
    """At most one copy is in flight, and every copy that is due is made or follows as soon as it can."""
    jobs: dict[str, _Owed] = {}
    for fact in history:
        if isinstance(fact, facts.JobSubmitted):
            jobs[fact.job] = _Owed(fact)
        elif (job := getattr(fact, "job", None)) in jobs:
            jobs[job].take(fact)
            assert len(jobs[job].in_flight) <= 1


class _Owed:
    """What one job owes its submitter."""

    def __init__(self, submitted: facts.JobSubmitted) -> None:
        self.units = list(submitted.training.units())
        self.every = submitted.checkpoint_every
        self.owed = False
        self.in_flight: set[int] = set()

    def take(self, fact: facts.Fact) -> None:
        if isinstance(fact, facts.CopyAsked):
            self.owed = True
        elif isinstance(fact, facts.CopyStored):
            self.in_flight.remove(fact.unit)
        elif isinstance(fact, facts.JobPlanning | facts.JobRolledBack | facts.JobRegrouped):
            self.owed |= bool(self.in_flight)
            self.in_flight.clear()
        elif isinstance(fact, facts.UnitDecided):
            self._decided(fact)

    def _decided(self, fact: facts.UnitDecided) -> None:
        unit = self.units[fact.unit]
        self.owed |= unit.train and bool(self.every) and (unit.step + 1) % self.every == 0
        can = unit.train and not self.in_flight and unit != self.units[-1]
        assert fact.keep == (self.owed and can)
        if fact.keep:
            self.owed = False
            self.in_flight.add(fact.unit)

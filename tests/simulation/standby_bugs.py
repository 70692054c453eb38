"""Bugs to plant in what idle workers hold for jobs that run."""

from __future__ import annotations

from typing import Any

from tests.simulation.planting import Patch

from farflung.broker.core.protecting import standbys
from farflung.broker.core.recovering import restoring


def counts_on_standbys_that_are_gone(patch: Patch) -> None:
    """A worker that was lost, or that another job has taken, still stands by."""
    patch.setattr(standbys, "_still_there", lambda state, job: sorted(set(job.standbys.values())))


def leaves_idle_workers_alone(patch: Patch) -> None:
    """No newcomer ever stands by."""
    patch.setattr(standbys, "_may_join", lambda *given: False)


def lets_another_than_the_standby_take_over(patch: Patch) -> None:
    """A lost worker's place goes to one that has to be sent the state first."""

    def preference(state: Any, worker: str, lost: str, having: list[str]) -> Any:
        return worker in having, worker != lost, worker

    patch.setattr(restoring, "preference", preference)


STANDBY_BUGS = [
    counts_on_standbys_that_are_gone,
    leaves_idle_workers_alone,
    lets_another_than_the_standby_take_over,
]

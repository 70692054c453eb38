"""Bugs to plant in what idle workers hold for jobs that run."""

from __future__ import annotations

from typing import Any

from tests.simulation.planting import Patch, only

from farflung.broker.core.protecting import late_versions, standbys
from farflung.broker.core.records import RUNNING
from farflung.broker.core.recovering import restoring


def hurry(patch: Patch) -> None:
    """Give standbys little time for copies: jobs of simulated worlds are short."""
    patch.setattr(late_versions, "LEAST_SECONDS", 2.0)
    patch.setattr(late_versions, "LATE", 2.0)


def counts_on_standbys_that_are_gone(patch: Patch) -> None:
    """A worker that has left or was lost, or that another job has taken, still stands by."""
    only(patch, "leave")
    patch.setattr(standbys, "lost", lambda turn, worker: None)
    patch.setattr(standbys, "_still_there", lambda state, job: sorted(set(job.standbys.values())))


def leaves_idle_workers_alone(patch: Patch) -> None:
    """No worker that joins ever stands by."""
    patch.setattr(standbys, "_may_join", lambda *given: False)


def lets_them_hold_the_first_version(patch: Patch) -> None:
    """The first version goes to standbys, to which members must link first."""
    patch.setattr(
        standbys, "_may_get_more", lambda state, job: job.state == RUNNING and not job.versions.under_way
    )


def waits_for_silent_ones(patch: Patch) -> None:
    """A standby that keeps its session but never has its copies holds up a version as members do."""
    only(patch, "full")
    hurry(patch)
    patch.setattr(late_versions, "_missing", lambda state, job, version: {})


def lets_another_than_the_standby_take_over(patch: Patch) -> None:
    """A lost worker's place goes to one that has to be sent the state first."""

    def preference(state: Any, worker: str, lost: str, having: list[str]) -> Any:
        return worker in having, worker != lost, worker

    only(patch, "hang", "kill", "lose")
    patch.setattr(restoring, "preference", preference)


STANDBY_BUGS = [
    counts_on_standbys_that_are_gone,
    leaves_idle_workers_alone,
    lets_another_than_the_standby_take_over,
    lets_them_hold_the_first_version,
    waits_for_silent_ones,
]

"""Bugs to plant in how a job with replicas goes on when members are lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.simulation.planting import HONEST_STEP, Patch, hears, reduces

from farflung.broker.core import facts
from farflung.broker.core.records import Job
from farflung.broker.core.recovering import mending
from farflung.broker.core.recovering.replaying import Obstacle
from farflung.worker import events


def goes_back_at_each_loss(patch: Patch) -> None:
    """All members give up their state when one is lost, though a replica is whole."""
    patch.setattr(mending, "mending", lambda state, job, lost=(): Obstacle("it is so"))


def counts_on_newcomers(patch: Patch) -> None:
    """A newcomer is to go on with a state that it does not hold."""
    patch.setattr(Job, "newcomers", property(lambda job: set()))


def gives_no_state(patch: Patch) -> None:
    """A member that is to give its state does not."""

    def wrong(before: Any, event: events.Event) -> Any:
        after, commands = HONEST_STEP(before, event)
        return after, [one for one in commands if not isinstance(one, events.GiveTo)]

    hears(patch, wrong)


def keeps_the_workers_of_a_dropped_replica(patch: Patch) -> None:
    """Workers of a pipeline that was dropped are not free."""
    reduces(patch, facts.JobMended, lambda fact, before, after: replace(after, workers=before.workers))


def gives_another_part(patch: Patch) -> None:
    """A newcomer gets the state of other segments than its own."""
    honest = mending.mending

    def wrong(state: Any, job: Any, lost: Any = ()) -> Any:
        found = honest(state, job, lost)
        if isinstance(found, Obstacle):
            return found
        seats = found.plan.seats()
        others = {
            taker: next((at for at in seats if at not in found.donors and at % 2 != donor % 2), donor)
            for taker, donor in found.donors.items()
        }
        return replace(found, donors=others)

    patch.setattr(mending, "mending", wrong)


MENDING_BUGS = [
    goes_back_at_each_loss,
    counts_on_newcomers,
    gives_no_state,
    keeps_the_workers_of_a_dropped_replica,
    gives_another_part,
]

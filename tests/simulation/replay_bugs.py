"""Bugs to plant in how lost shares are replayed while others keep their state."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.planting import Patch, reduces

from farflung.broker.core import facts
from farflung.broker.core.records import LOADING, Job
from farflung.broker.core.recovering import awaiting, replaying
from farflung.broker.core.recovering.replaying import Obstacle
from farflung.worker.computing.replay import Replay


def goes_back_at_each_loss(patch: Patch) -> None:
    """All members give up their state when one is lost, though it could be replayed."""
    patch.setattr(replaying, "takeover", lambda state, job, lost=(): Obstacle("it is so"))


def counts_on_a_replay_that_is_not_over(patch: Patch) -> None:
    """One that still runs past units again is to go on with a state that it does not hold."""
    honest = Job.without_state.fget
    assert honest is not None
    wrong = property(lambda job: set() if job.keeps and job.state == LOADING else honest(job))
    patch.setattr(Job, "without_state", wrong)


def goes_back_though_a_lost_one_may_return(patch: Patch) -> None:
    """All members give up their state when one is lost whose disk has all that it needs."""
    patch.setattr(awaiting, "may_await", lambda state, job, name: False)


def awaits_a_lost_one_without_end(patch: Patch) -> None:
    """A job waits for a worker that does not return although it could go on without it."""
    patch.setattr(awaiting, "on_tick", lambda turn, least_seconds: None)


def begins_before_all_are_back(patch: Patch) -> None:
    """Those that are awaited are taken for members that hold the state."""
    reduces(
        patch,
        facts.JobRegrouped,
        lambda fact, before, after: after.with_job(replace(after.jobs[fact.job], awaited=(), replayers=())),
    )


def sends_nothing_to_others_that_replay(patch: Patch) -> None:
    """Two neighbours that run past units again wait for one another for ever."""
    patch.setattr(Replay, "may_send", lambda self, peer, parcel: parcel.unit >= self.over)


def sends_before_it_is_asked(patch: Patch) -> None:
    """A worker sends values of past units to a neighbour that has not loaded its state yet."""
    patch.setattr(Replay, "may_send", lambda self, peer, parcel: True)


REPLAY_BUGS = [
    goes_back_though_a_lost_one_may_return,
    awaits_a_lost_one_without_end,
    begins_before_all_are_back,
    goes_back_at_each_loss,
    counts_on_a_replay_that_is_not_over,
    sends_nothing_to_others_that_replay,
    sends_before_it_is_asked,
]

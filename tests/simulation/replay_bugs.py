"""Bugs to plant in how lost shares are replayed while others keep their state."""

from __future__ import annotations

from tests.simulation.planting import Patch

from farflung.broker.core import replaying
from farflung.broker.core.records import LOADING
from farflung.broker.core.replaying import Obstacle
from farflung.worker.replay import Replay


def goes_back_at_each_loss(patch: Patch) -> None:
    """All members give up their state when one is lost, though it could be replayed."""
    patch.setattr(replaying, "takeover", lambda state, job, lost=(): Obstacle("it is so"))


def counts_on_a_replay_that_is_not_over(patch: Patch) -> None:
    """One that still runs past units again is to go on with a state that it does not hold."""
    honest = replaying.without_state
    patch.setattr(
        replaying, "without_state", lambda job: set() if job.keeps and job.state == LOADING else honest(job)
    )


def sends_nothing_to_others_that_replay(patch: Patch) -> None:
    """Two neighbours that run past units again wait for one another for ever."""
    patch.setattr(Replay, "may_send", lambda self, peer, parcel: parcel.unit >= self.over)


def sends_before_it_is_asked(patch: Patch) -> None:
    """A worker sends values of past units to a neighbour that has not loaded its state yet."""
    patch.setattr(Replay, "may_send", lambda self, peer, parcel: True)


REPLAY_BUGS = [
    goes_back_at_each_loss,
    counts_on_a_replay_that_is_not_over,
    sends_nothing_to_others_that_replay,
    sends_before_it_is_asked,
]

"""The compute thread: what it hands out while a step runs, and at the end of a job."""

from __future__ import annotations

from tests.worker.running_thread import ATTEMPT, MICROBATCHES, running

from farflung.worker.computing.outcomes import Outgoing
from farflung.worker.events import UnitFinished


def test_state_is_handed_out_while_a_step_goes_on() -> None:
    with running() as undisturbed:
        for microbatch in range(MICROBATCHES):
            undisturbed.feed(microbatch)
        expected = undisturbed.shares()
    with running() as asked:
        asked.feed(0)
        asked.wait_for(Outgoing)  # the first microbatch is done
        asked.thread.give_state(ATTEMPT)
        for microbatch in range(1, MICROBATCHES):
            asked.feed(microbatch)
        assert asked.handed_out() == asked.state
        assert asked.shares() == expected


def test_at_the_end_of_training_the_step_in_flight_is_dropped_before_state_is_handed_out() -> None:
    """So that a copy of the state takes the memory of the gradients."""
    with running() as ending:
        ending.feed(0)
        ending.wait_for(Outgoing)
        ending.thread.end_training(ATTEMPT)
        ending.thread.give_state(ATTEMPT)
        for microbatch in range(1, MICROBATCHES):
            ending.feed(microbatch)
        assert ending.handed_out() == ending.state
        job = ending.thread._job
        assert job is not None and not job.executor._units and not job.segments[0].gradients()
    assert not any(isinstance(one, UnitFinished) for one in ending.said)

"""The compute thread says when the tasks of a watched unit ran, and nothing of others."""

from __future__ import annotations

import time

import pytest
from tests.worker.running_thread import ATTEMPT, MICROBATCHES, Running, running

from farflung.worker.events import UnitFinished


def finished(one: Running) -> UnitFinished:
    one.wait_for(UnitFinished)
    (found,) = [said for said in one.said if isinstance(said, UnitFinished)]
    return found


@pytest.mark.parametrize("watched", [Running.UNIT, Running.UNIT + 1])
def test_tasks_of_the_watched_unit_follow_each_other_on_the_hosts_clock(watched: int) -> None:
    began = time.perf_counter()
    with running() as one:
        one.thread.watch(ATTEMPT, watched)
        for microbatch in range(MICROBATCHES):
            one.feed(microbatch)
        ran = finished(one).ran
    if watched != Running.UNIT:
        assert ran == ()
        return
    update, *tasks = ran
    assert update.kind == "update"
    assert [task.microbatch for task in tasks if task.kind == "forward"] == list(range(MICROBATCHES))
    assert {task.kind for task in tasks} == {"forward", "backward", "accumulate"}
    moments = [moment for task in tasks for moment in (task.start, task.end)]
    assert moments == sorted(moments)
    assert began < moments[0] and moments[-1] < time.perf_counter()

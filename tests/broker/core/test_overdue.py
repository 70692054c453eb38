from __future__ import annotations

from dataclasses import replace

from tests.broker.scenario import Scenario

from farflung.broker.core.training.overdue import BYTES_PER_SECOND, overdue
from farflung.plans import Placement, Plan


def test_loading_may_take_as_long_as_the_state_needs_on_a_slow_line() -> None:
    story = Scenario("a")
    story.submit(1)
    story.planned()
    part = Placement(0, ["a"], 4000, int(1000 * BYTES_PER_SECOND), 3)
    job = replace(story.state.jobs["job-1"], plan=Plan([part], [], microbatches=2, window=2))
    assert not overdue(job, job.pace.moved_at + 1899.0, 900.0)
    assert "not loaded on a after 1901 s (allowed: 1900 s)" in overdue(job, job.pace.moved_at + 1901.0, 900.0)

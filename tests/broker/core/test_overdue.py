from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.broker.scenario import Scenario

from farflung.broker.core.records import RUNNING
from farflung.broker.core.training.overdue import BYTES_PER_SECOND, COMPILE_SECONDS_PER_NODE, overdue
from farflung.plans import Pipeline, Placement, Plan, Sum
from farflung.worker.computing import task_deadlines


def test_loading_may_take_as_long_as_the_state_needs_on_a_slow_line() -> None:
    story = Scenario("a")
    story.submit(1)
    story.planned()
    part = Placement(0, ["a"], 4000, int(1000 * BYTES_PER_SECOND), 3)
    job = replace(story.state.jobs["job-1"], plan=Plan([part], [], microbatches=2, window=2))
    assert not overdue(job, job.pace.moved_at + 1899.0, 900.0)
    assert "not loaded on a after 1901 s (allowed: 1900 s)" in overdue(job, job.pace.moved_at + 1901.0, 900.0)


def test_a_first_step_may_take_as_long_as_its_sums_need_on_a_slow_line() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.planned()
    parts = [Placement(n, [name], 1, 1, 1) for n, name in enumerate("ab")]
    one = Sum(7, int(2000 * BYTES_PER_SECOND), [[0], [1]], [0, 1], 0)
    alone = Plan(parts, [], microbatches=2, window=2, pipelines=[Pipeline(1, 1), Pipeline(1, 1)])
    summed = msgspec.structs.replace(alone, sums=[one])
    job = replace(story.state.jobs["job-1"], state=RUNNING)
    late = job.pace.moved_at + 3900.0
    assert overdue(replace(job, plan=alone), late, 900.0)
    assert not overdue(replace(job, plan=summed), late, 900.0)


def test_loading_a_compiled_job_may_take_as_long_as_a_worker_may_compile() -> None:
    """The broker gave the job up while its workers still compiled within their own deadline."""
    assert pytest.approx(task_deadlines.TIMES * task_deadlines.COMPILE_SECONDS) == COMPILE_SECONDS_PER_NODE
    story = Scenario("a", "b")
    story.submit(2)
    story.planned()
    parts = [
        Placement(n, [name], 1, 1, nodes)
        for n, (name, nodes) in enumerate(zip("aba", (500, 700, 300), strict=True))
    ]
    plain = replace(story.state.jobs["job-1"], plan=Plan(parts, [], microbatches=2, window=2))
    compiled = replace(plain, training=msgspec.structs.replace(plain.training, compiled=True))
    late = plain.pace.moved_at + 900.0 + 800 * COMPILE_SECONDS_PER_NODE
    assert overdue(plain, late - 1, 900.0) and not overdue(compiled, late - 1, 900.0)
    assert overdue(compiled, late + 1, 900.0)

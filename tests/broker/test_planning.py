from __future__ import annotations

import asyncio
import logging

import pytest
from tests.broker.scenario import training

from farflung.broker.events import PlanFailed, RunPlanner
from farflung.broker.planning import plan


def test_a_hostile_graph_is_a_reason_and_no_traceback() -> None:
    command = RunPlanner("job-1", 3, b"\xc1 no graph", training(), ("a", "b"), exactly=True)
    answer = asyncio.run(plan(command, lambda: 7.0))
    assert isinstance(answer, PlanFailed)
    assert (answer.now, answer.job, answer.attempt) == (7.0, "job-1", 3)
    assert answer.reason and "\n" not in answer.reason
    assert "broke" not in answer.reason


def test_a_defect_of_the_planner_is_logged_and_ends_only_the_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("node 7")

    monkeypatch.setattr("farflung.planner.plan_job", broken)
    command = RunPlanner("job-1", 1, b"", training(), ("a",), exactly=True)
    with caplog.at_level(logging.ERROR, "farflung.broker"):
        answer = asyncio.run(plan(command, lambda: 0.0))
    assert isinstance(answer, PlanFailed)
    assert "KeyError" in answer.reason
    assert caplog.records[0].exc_info is not None

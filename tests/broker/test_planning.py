from __future__ import annotations

import asyncio
import logging

import pytest
import torch
from tests.broker.scenario import training
from torch import nn

from farflung.broker.events import PlanFailed, PlanMade, RunPlanner
from farflung.broker.planning import plan
from farflung.opdag import wire
from farflung.opdag.capture import capture


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


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def test_a_captured_model_is_planned_with_the_sizes_that_its_segments_own() -> None:
    torch.manual_seed(0)
    graph = wire.dump(capture(Tower(), {"x": torch.randn(4, 8)}).graph)
    job = training(microbatch_size=4)
    answer = asyncio.run(plan(RunPlanner("job-1", 1, graph, job, ("a", "b"), exactly=True), lambda: 0.0))
    assert isinstance(answer, PlanMade)
    assert answer.plan.workers() == ["a", "b"]
    sizes = {name: size for program in answer.programs for name, size in program.owned.items()}
    assert sizes == {name: 4 * tensor.numel() for name, tensor in Tower().state_dict().items()}
    assert [list(program.owned) for program in answer.programs] == answer.owned


def test_of_an_emulated_job_nothing_moves() -> None:
    graph = wire.dump(capture(Tower(), {"x": torch.randn(4, 8)}).graph)
    job = training(microbatch_size=4, emulated=True)
    answer = asyncio.run(plan(RunPlanner("job-1", 1, graph, job, ("a", "b"), exactly=True), lambda: 0.0))
    assert isinstance(answer, PlanMade)
    assert answer.owned == [[], []]
    assert not any(program.owned for program in answer.programs)

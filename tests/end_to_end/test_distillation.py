"""Distillation on four workers is distillation in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support import distilled
from tests.support.one_process import in_one_process

import farflung

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def job() -> farflung.Job:
    return distilled.language_job(steps=6, counted="labels", name="distilled")


@pytest.mark.full
def test_distillation_on_four_workers_equals_one_process_bit_for_bit(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    losses, module, _ = in_one_process(job())
    with farflung.local(4, device="cpu") as fleet:
        run = fleet.train(job(), out=tmp_path / "run")
        assert (run.wait().steps, run.summary.workers) == (6, 4)  # type: ignore[union-attr]
        assert [row.loss for row in run.metrics.rows] == losses
        trained = run.state_dict()
    assert all(torch.equal(trained[name], tensor) for name, tensor in module.state_dict().items())
    untrained = job().model.state_dict()
    assert all(torch.equal(trained[n], untrained[n]) for n in trained if n.startswith("teacher."))

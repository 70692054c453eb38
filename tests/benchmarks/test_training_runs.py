"""Tables, pictures and comparisons of whole trainings, from run folders that are written here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks.training_runs import chart, curves, one_process

from farflung.client.api.load import load_job
from farflung.client.output.records import StepRow, ValidationRow
from farflung.client.output.run_folder import RunFolder
from farflung.pictures.figure import render

JOB = """
import torch
from torch import nn
import farflung

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x).square().mean()

def job():
    torch.manual_seed(0)
    items = [{"x": torch.randn(4)} for _ in range(16)]
    optimizer = farflung.AdamW(lr=1e-2)
    return farflung.Job(model=Net(), data=items, optimizer=optimizer, batch=4, microbatches=2, steps=5)
"""


def written(folder: Path, losses: list[float], attempt: int = 1) -> curves.Curves:
    """A run with these losses, and an evaluation before the first step and after the last one."""
    run = RunFolder.create(folder)
    run.add_validation(ValidationRow(0, 3.0, {"accuracy": 0.125}, attempt))
    for step, loss in enumerate(losses, 1):
        run.add_step(StepRow(step, loss, 4, 0.5, 8.0, 100, attempt, 1e-2, 1.0))
    run.add_validation(ValidationRow(len(losses), 0.75, {"accuracy": 0.875}, attempt))
    run.close()
    events = [
        {"event": "validated", "step": at, "loss": loss} for at, loss in ((0, 3.0), (len(losses), 0.75))
    ]
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return curves.read(folder)


def test_a_row_has_the_mean_training_loss_since_the_row_before(tmp_path: Path) -> None:
    found = written(tmp_path / "run", [2.0, 1.0, 1.0, 0.5, 0.25])
    assert [*curves.table(found, 2)] == [
        "| steps | training loss | held-out loss | accuracy |",
        "|---|---|---|---|",
        "| 0 |  | 3.000 | 0.125 |",
        "| 2 | 1.500 |  |  |",
        "| 4 | 0.750 |  |  |",
        "| 5 | 0.250 | 0.750 | 0.875 |",
    ]


def test_a_picture_has_a_panel_for_each_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = chart.draw([written(tmp_path / name, [2.0, 1.0]) for name in ("first_run", "other")])
    content = render(drawn).decode()
    assert all(words in content for words in ("first run", "other", "held out", "accuracy"))


def test_a_run_is_compared_with_the_first_steps_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "job.py").write_text(JOB)
    losses = one_process.losses(load_job(tmp_path / "job.py"), 3)
    assert len(set(losses)) == 3
    same = one_process.compare(tmp_path / "job.py", written(tmp_path / "same", losses), 3)
    assert (
        same
        == "same: 3 of the first 3 losses are equal bit for bit; the worst differs by 0.0e+00 of its value"
    )
    other = written(tmp_path / "other", [losses[0], losses[1] * (1 + 1e-3), losses[2]])
    assert "2 of the first 3 losses are equal bit for bit; the worst differs by 1.0e-03" in (
        one_process.compare(tmp_path / "job.py", other, 3)
    )

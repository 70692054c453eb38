"""What a run says and checks before its model is captured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import farflung
from farflung.client.beginning.run_start import RunStart
from farflung.client.beginning.source import JobFile
from farflung.client.output.run_record import RunOptions, RunRecord
from farflung.client.run.checkpointing import CheckpointPolicy


def job(steps: int, schedule: object) -> farflung.Job:
    optimizer = farflung.AdamW(lr=0.5, schedule=schedule)  # type: ignore[arg-type]
    data = [{"x": torch.zeros(2)}]
    return farflung.Job(
        model=torch.nn.Linear(2, 1), data=data, optimizer=optimizer, batch=1, microbatches=1, steps=steps
    )


def start(path: Path, said: list[str], is_resumed: bool = False) -> RunStart:
    options, source = RunOptions(), JobFile(str(path / "job.py"))
    earlier = RunRecord.of("", options) if is_resumed else None
    return RunStart(source, path, options, CheckpointPolicy(), earlier, tell=said.append)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (
            farflung.WarmupCosine(warmup_steps=2, total_steps=20),
            "20 steps (WarmupCosine, total_steps): from there on the learning rate stays at 0.05",
        ),
        (
            farflung.WSD(warmup_steps=2, stable_steps=10, decay_steps=8),
            "20 steps (WSD, decay_steps): from there on the learning rate is 0, so nothing changes",
        ),
        (
            farflung.Table(((0, 0.1), (5, 1.0), (20, 0.5))),
            "20 steps (Table, points): from there on the learning rate stays at 0.25",
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_steps_after_the_end_of_a_schedule_are_said(tmp_path: Path, schedule: object, words: str) -> None:
    said: list[str] = []
    start(tmp_path, said).note_schedule(job(20, schedule))
    assert said == []
    start(tmp_path, said).note_schedule(job(30, schedule))
    assert said == [f"note: the job has 30 steps, but its schedule ends after {words}"]
    start(tmp_path, said, is_resumed=True).note_schedule(job(21, schedule))
    assert said[1].endswith(f"after {words}; a resumed run keeps its schedule")


@pytest.mark.parametrize(
    "schedule", [farflung.Constant(5), farflung.LinearLR(), farflung.WarmupCosine(1, 5, 1.0)]
)
def test_a_schedule_without_an_end_is_none_to_go_beyond(tmp_path: Path, schedule: object) -> None:
    said: list[str] = []
    start(tmp_path, said).note_schedule(job(1000, schedule))
    assert said == []

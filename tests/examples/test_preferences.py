"""The example of preferences: four workers learn on which of two answers the reward is larger."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support import adapters

import farflung
from farflung.client.api.load import load_job

pytestmark = [pytest.mark.processes, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "preferences.py"


@pytest.mark.full
def test_held_out_pairs_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    job = load_job(EXAMPLE)
    assert job.validation is not None and len(job.data) > 60 and len(job.validation) > 20  # type: ignore[arg-type]
    with farflung.local(4, device="cpu") as fleet:
        run = fleet.train(job, out=tmp_path / "run")
        assert run.wait().steps == job.steps
        found = run.metrics.validations[-1]
    assert found.metrics["accuracy"] > 0.9 and found.loss < 0.6  # of 0.69 without training
    base = job.model.policy.get_base_model()  # type: ignore[union-attr]
    assert adapters.peft.PeftModel.from_pretrained(base, tmp_path / "run/adapter")

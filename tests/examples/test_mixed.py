"""The job that trains on two frameworks; that it does is shown in `tests/end_to_end/test_mixed.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from farflung.client.api.load import load_job

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed.py"


def test_the_job_can_be_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    job = load_job(EXAMPLE)
    assert job.steps == 100 and job.data.describe()["name"] == "python-library"  # type: ignore[attr-defined]

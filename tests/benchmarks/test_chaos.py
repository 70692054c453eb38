"""Faults of every kind, at seeded moments of real runs, change no bit of what is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import chaos

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]


def test_ten_faults_change_no_bit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert chaos.main(["--faults", "10", "--seed", "3", "--json", "--folder", str(tmp_path)]) == 0
    document = json.loads(capfd.readouterr().out)
    events = [fault for job in document["jobs"] for fault in job["events"]]
    assert sum(fault["counted"] for fault in events) >= 10
    assert {job["codec"] for job in document["jobs"]} == set(chaos.CODECS)
    assert all(job["sha256"] == job["undisturbed_sha256"] for job in document["jobs"])
    assert sum(job["rollbacks"] for job in document["jobs"]) > 0

"""A run that is stopped before its first step leaves its name to the older run that had it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.cli.test_errors import JOB

from farflung.cli.main import run
from farflung.client.output.records import StepRow
from farflung.client.output.run_folder import RunFolder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_fleet_starts_gives_the_older_run_its_name_back(
    number: signal.Signals,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "good.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    older = RunFolder.create(tmp_path / "run")
    older.add_step(StepRow(1, 1.0, 8, 0.5, 16.0, 100, 1, 0.1, 2.0))
    older.close()

    async def start(_: object) -> None:
        os.kill(os.getpid(), number)
        await asyncio.sleep(60)

    monkeypatch.setattr("farflung.localhost.fleet.LocalFleet._start", start)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # if nobody caught it, this process would end
    try:
        assert run(["train", "good.py", "--local", "1", "--out", "run"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "the older run has its folder back" in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.jsonl").read_text()
    assert not (tmp_path / "run.1").exists() and not (tmp_path / "run.2" / "summary.json").exists()

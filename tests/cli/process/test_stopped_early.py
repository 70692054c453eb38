"""A run that is stopped before its first step leaves its name to the older run that had it."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.test_errors import JOB

from farflung.cli.main import run
from farflung.client.api.interrupts import on_signals
from farflung.client.api.run import Run
from farflung.client.output.records import StepRow
from farflung.client.output.run_folder import RunFolder


def test_a_run_says_which_signal_stopped_it() -> None:
    stops: list[str] = []
    run: Any = SimpleNamespace(
        _frontend=SimpleNamespace(warn=lambda _: None),
        _execution=SimpleNamespace(stopping_words=lambda: "stopping"),
        stop=stops.append,
    )
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        with on_signals(numbers, partial(Run.interrupt, run), lambda: stops.append("at once")):
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), signal.SIGINT)
    assert stops == ["stopped by the user", "at once", "stopped by SIGTERM", "at once"]


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

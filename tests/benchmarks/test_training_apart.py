"""What training apart costs and saves: a study of few steps, kept and gone on with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import training_apart

pytestmark = pytest.mark.slow
SIDES = ("synchronous", "alone", "2/int4/2")


def study(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, object]]:
    argv = [
        "training_apart",
        "--kept",
        str(kept),
        "--steps",
        "8",
        "--seeds",
        "1",
        "--json",
        "--sides",
        *SIDES,
    ]
    monkeypatch.setattr(sys, "argv", argv)
    assert training_apart.main() == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_each_side_has_its_loss_and_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = study(tmp_path / "kept.jsonl", monkeypatch, capsys)
    assert [row["side"] for row in found] == list(SIDES)
    synchronous, alone, apart = found
    assert alone["sent_bytes"] == 0
    # The handover is dense and goes one way only, and three merges take 4 bits a number and some.
    dense = synchronous["sent_bytes"] / 8
    assert 1.1 * dense < apart["sent_bytes"] < 1.2 * dense
    assert len({row["loss"] for row in found}) == 3
    monkeypatch.setattr(training_apart, "run", lambda *_: pytest.fail("it is kept"))
    assert study(tmp_path / "kept.jsonl", monkeypatch, capsys) == found

"""`farflung drain` that is interrupted says whether the worker leaves all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farflung.cli.commands import drain
from farflung.cli.main import run
from farflung.protocol.viewer import WorkerStatus


@pytest.mark.parametrize(
    ("is_asked", "words"),
    [(True, "w leaves all the same, within 10 minutes"), (False, "w was not asked to leave")],
)
def test_ctrl_c_says_whether_the_worker_leaves(
    is_asked: bool, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def interrupted(*given: Any) -> None:
        given[-1].done = is_asked
        raise KeyboardInterrupt

    monkeypatch.setattr(drain, "_drain", interrupted)
    assert run(["drain", "w"]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


LEFT = WorkerStatus("w", "left", "cpu", "", "", 0.0, "", 0.0, reason="it left", connected=False)


@pytest.mark.parametrize(
    ("left", "code"),
    [
        (LEFT, 0),
        (msgspec.structs.replace(LEFT, in_order=False), 1),
        (msgspec.structs.replace(LEFT, is_lost=True), 1),
    ],
)
def test_the_code_says_whether_the_worker_left_in_good_order(
    left: WorkerStatus, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def drained(*given: Any) -> WorkerStatus:
        return left

    monkeypatch.setattr(drain, "_drain", drained)
    assert run(["drain", "w"]) == code
    said = capsys.readouterr()
    ok, not_ok = "w has left: it left\n", "error: w has left, but not in good order: it left\n"
    assert (said.out, said.err) == (("", not_ok) if code else (ok, ""))
    assert run(["drain", "w", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["in_order"], found["is_lost"]) == (left.in_order, left.is_lost)


def test_a_wish_needs_an_identity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["drain", "w", "--folder", str(tmp_path)]) == 2
    assert "farflung token create --role operator" in capsys.readouterr().err

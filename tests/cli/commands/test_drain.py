"""`farflung drain` that is interrupted says whether the worker leaves all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farflung.cli.commands import drain
from farflung.cli.main import run


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


def test_a_wish_needs_an_identity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["drain", "w", "--folder", str(tmp_path)]) == 2
    assert "farflung token create --role operator" in capsys.readouterr().err

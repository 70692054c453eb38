"""What `farflung join` says while it makes itself ready."""

from __future__ import annotations

import sys

import pytest

from farflung.cli.join import _imported
from farflung.runtime import frameworks


def test_a_framework_that_takes_its_time_is_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def imported(name: str, tflops: float | None = None) -> str:
        said.append(capsys.readouterr().err)
        return f"the backend {name}"

    monkeypatch.setattr(frameworks, "COMPUTING", ("abacus",))
    monkeypatch.setattr(frameworks, "backend_called", imported)
    assert str(_imported("abacus", None)) == "the backend abacus"
    monkeypatch.setitem(sys.modules, "abacus", sys)
    assert str(_imported("abacus", None)) == "the backend abacus"
    assert said == ["importing abacus to measure this machine with it takes 3 to 10 s\n", ""]

"""`farflung report`: what it prints, with and without `--json`, and for what is no run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.pages.report.runs import run_with_a_fault

from farflung.cli.main import run


def test_it_names_the_page_and_what_the_run_folder_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (run_with_a_fault(tmp_path / "runs" / "gpt") / "summary.json").write_text("{")
    assert run(["report", "runs/gpt"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"wrote {tmp_path}/gpt-report.html (")
    assert printed.out.endswith("): open it in a browser\n")
    assert printed.err == f"warning: {tmp_path}/runs/gpt: summary.json cannot be read\n"
    assert Path("gpt-report.html").stat().st_size > 50_000


def test_a_script_gets_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = run_with_a_fault(tmp_path / "gpt"), tmp_path / "both.html"
    assert run(["report", str(folder), str(folder), "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["file"], found["states"], found["bytes"]) == (
        str(out),
        ["done", "done"],
        out.stat().st_size,
    )


def test_what_is_no_run_is_one_line_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(tmp_path / "none")]) != 0
    assert capsys.readouterr().err.count("\n") == 1

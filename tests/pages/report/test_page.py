"""One file that needs nothing else, in which no name from a run can become a script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.pages.report.runs import WORKERS, Writer, change, run_with_a_fault

from farflung.errors import JobError
from farflung.pages.report.page import write_page

MOST_BYTES = 2_000_000
HOSTILE = "</script><script>alert(1)</script><!-- \u2028 \u202e & \" '"


def embedded(page: str) -> Any:
    """The data of a page, as a browser finds it."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_numbers_of_a_page_are_those_of_the_run_folder(tmp_path: Path) -> None:
    folder, out = run_with_a_fault(tmp_path / "run"), tmp_path / "page.html"
    page = write_page([folder], out)
    assert (page.file, page.states, page.warnings) == (str(out), ["done"], [])
    assert page.bytes == out.stat().st_size
    (run,) = embedded(out.read_text())["runs"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = {row["step"]: row["loss"] for row in rows if "loss" in row}  # later rows count
    assert dict(zip(run["curves"]["step"], run["curves"]["loss"], strict=True)) == losses
    assert [(one["step"], one["value"]) for one in run["evaluations"]["validation loss"]] == [
        (0, 5.5),
        (6, 2.25),
    ]
    assert [plan["attempt"] for plan in run["plans"]] == [1, 2]
    assert ["took", "1 s"] in run["facts"]


def test_the_policy_names_the_scripts_and_the_style_of_the_page(tmp_path: Path) -> None:
    page = Path(write_page([run_with_a_fault(tmp_path / "run")], tmp_path / "page.html").file).read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    for name, tag in (("script-src", '<script type="module">'), ("style-src", "<style>")):
        start = page.index(tag) + len(tag)
        text = page[start : page.index("</", start)]
        assert rules[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert rules["default-src"] == "'none'"
    assert not re.search(r'(?:src|href)="', page)


def test_names_from_a_run_cannot_end_the_element_that_holds_them(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    run.event(0, "submitted", name=HOSTILE, broker=HOSTILE)
    run.planned(1, workers=(HOSTILE, "lab"))
    run.event(2, "rolled back", attempt=1, unit=0, step=0, done=0, reason=HOSTILE)
    run.event(3, "codecs", step=0, changes=[change(HOSTILE, "lab", HOSTILE)], words=[HOSTILE])
    run.ended(4, "failed", HOSTILE)
    plain = Path(write_page([run_with_a_fault(tmp_path / "plain")], tmp_path / "plain.html").file).read_text()
    page = Path(write_page([run.path], tmp_path / "page.html").file).read_text()
    assert page.count("<script") == plain.count("<script") == 2
    assert page.count("<!--") == plain.count("<!--")
    assert "\u2028" not in page
    shown = HOSTILE.replace("\u2028", "?").replace("\u202e", "?")
    (run_data,) = embedded(page)["runs"]
    assert run_data["title"] == run_data["reason"] == run_data["codecs"][0]["changes"][0]["source"] == shown


@pytest.mark.slow
def test_a_run_of_10000_steps_is_below_two_megabytes(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    run.event(0, "submitted", name="long", broker="127.0.0.1:7700")
    for attempt in range(400):
        run.planned(attempt, attempt=attempt)
        run.event(attempt, "rolled back", attempt=attempt, unit=0, step=0, done=0, reason="w" * 300)
    for step in range(1, 10_001):
        run.step(step, 400.0 + step, attempt=400)
        if step % 10 == 0:
            run.evaluation(step, 400.5 + step, 1 / step, attempt=400)
            run.event(401 + step, "codecs", step=step, changes=[change(*WORKERS, reason="r" * 200)], words=[])
    run.ended(20_000)
    page = write_page([run.path, run.path], tmp_path / "page.html")
    assert page.bytes < MOST_BYTES
    first, _ = embedded(Path(page.file).read_text())["runs"]
    assert (first["curves"]["step"][-1], len(first["plans"])) == (10_000, 400)
    kept = len(first["codecs"])
    assert 100 < kept < 1000
    assert first["codecs"][-1]["step"] == 10_000
    assert f"of 1000 changes of codecs the page has the newest {kept}" in first["warnings"]


def test_bad_input_is_one_clear_line_and_writes_nothing(tmp_path: Path) -> None:
    run = run_with_a_fault(tmp_path / "run")
    out = tmp_path / "page.html"
    for folders, where, words in (
        ([run, run, run], out, "of two to compare, found 3 folders"),
        ([], out, "found 0 folders"),
        ([run, tmp_path], out, "expected a run folder"),
        ([run], tmp_path / "run.jsonl", "must end in .html"),
        ([run], tmp_path / "none" / "page.html", "cannot write"),
    ):
        with pytest.raises(JobError, match=words):
            write_page(folders, where)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_the_file_is_named_after_the_run_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with_a_fault(tmp_path / "runs" / "gpt")
    monkeypatch.chdir(run)
    assert write_page([Path()]).file == "gpt-report.html"
    (run / "gpt-report.html").unlink()

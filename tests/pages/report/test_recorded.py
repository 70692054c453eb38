"""Run folders are read as they are: whole, cut off, damaged, of an older version, or still being written."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from tests.pages.report.runs import Writer, run_with_a_fault

from farflung.client.output.run_folder import RunFolder
from farflung.errors import JobError
from farflung.pages.report.recorded import read_run


def test_a_whole_run_is_read_with_the_steps_that_it_did_again(tmp_path: Path) -> None:
    run = read_run(run_with_a_fault(tmp_path / "run"))
    assert (run.state, run.reason, list(run.warnings)) == ("done", "", [])
    assert [(row.step, row.attempt) for row in run.steps] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2)]
    assert len(run.all_rows) == len(run.rows) + 1
    assert [row.step for row in run.rows if row not in run.steps] == [0, 6]


def test_what_was_cut_off_or_is_damaged_is_left_out_and_said(tmp_path: Path) -> None:
    folder = run_with_a_fault(tmp_path / "run")
    whole = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "events.jsonl").write_text("".join([*whole[:5], "not json\n", '{"event": 7}\n', *whole[5:7]]))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')
    (folder / "summary.json").write_text("{")
    (folder / "run.json").write_text('{"format": 999}')
    run = read_run(folder)
    assert len(run.events) == 7
    assert run.state == "broken off"
    assert sorted(run.warnings) == [
        "left out 2 rows of events.jsonl that cannot be read",
        "run.json cannot be read: it is damaged, or of a newer farflung",
        "summary.json cannot be read",
        "the last row of metrics.jsonl was cut off, and is left out",
    ]


def test_a_run_of_an_older_version_has_no_times(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    run.event(0, "submitted", name="gpt", broker="127.0.0.1:7700")
    run.step(1, None)
    run.ended(3)
    path = run.path / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "at"}) + "\n" for row in rows))
    found = read_run(run.path)
    assert not found.has_times
    assert [row.step for row in found.steps] == [1]
    assert "older farflung" in found.warnings[0]


def test_steps_that_a_run_went_back_behind_do_not_count_even_if_it_was_cut_off_then(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    for step in (1, 2, 3):
        run.step(step, float(step))
    run.evaluation(3, 3.5, 4.0)
    run.event(4, "rolled back", attempt=1, unit=1, step=1, done=3, reason="lab was lost")
    run.folder.close()
    found = read_run(run.path)
    assert [row.step for row in found.rows] == [1]
    assert len(found.all_rows) == 4


def test_looking_at_a_folder_does_not_keep_a_run_from_it(tmp_path: Path) -> None:
    folder = run_with_a_fault(tmp_path / "run")
    over, states = threading.Event(), set[str]()

    def look() -> None:
        while not over.is_set():
            states.add(read_run(folder).state)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(200):
            RunFolder.reopen(folder).close()
    finally:
        over.set()
        looking.join()
    assert states and states <= {"done", "running"}


def test_a_folder_that_may_not_be_entered_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refused)  # root may enter every folder
    with pytest.raises(JobError, match=r"cannot read the run in .*Permission denied"):
        read_run(tmp_path)


def test_a_run_that_goes_on_is_read_and_not_disturbed(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    run.event(0, "submitted", name="gpt", broker="127.0.0.1:7700")
    run.step(1, 1.0)
    assert read_run(run.path).state == "running"
    run.step(2, 2.0)
    assert [row.step for row in read_run(run.path).steps] == [1, 2]
    run.folder.close()
    assert read_run(run.path).state == "broken off"


def test_a_run_whose_job_the_broker_holds_says_so(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    run.event(0, "left", reason="you detached")
    run.folder.close()
    found = read_run(run.path)
    assert (found.state, found.reason) == ("left", "you detached")


@pytest.mark.parametrize("kind", ["nothing", "another folder", "a file"])
def test_a_path_without_a_run_is_one_clear_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "there"
    if kind == "another folder":
        path.mkdir()
    elif kind == "a file":
        path.write_text("")
    with pytest.raises(JobError, match=f"expected a run folder at {path}, found {kind}"):
        read_run(path)

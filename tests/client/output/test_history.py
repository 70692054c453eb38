"""The rows that count, of a run that went back to a checkpoint or was killed while it wrote one."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from tests.client.output.test_run_folder import row

from farflung.client.output.history import attempts_of, effective_rows
from farflung.client.output.run_folder import RunFolder


def written(folder: Path, *rows: tuple[int, int]) -> Path:
    """A run folder with rows of these steps and attempts; the loss tells the place of each in the file."""
    run = RunFolder.create(folder)
    for at, (step, attempt) in enumerate(rows):
        run.add_step(msgspec.structs.replace(row(step, float(at)), attempt=attempt))
    run.close()
    return folder


def steps_and_places(path: Path) -> list[tuple[int, int]]:
    return [(found.step, int(found.loss or 0)) for found in effective_rows(path)]


def test_each_step_counts_once_in_its_last_attempt(tmp_path: Path) -> None:
    run = written(tmp_path / "run", (1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 2))
    expected = [(1, 0), (2, 3), (3, 4), (4, 5)]
    assert steps_and_places(run) == steps_and_places(run / "metrics.jsonl") == expected


def test_steps_that_a_run_went_back_behind_do_not_count(tmp_path: Path) -> None:
    run = written(tmp_path / "run", (1, 1), (2, 1), (3, 1), (4, 1), (2, 3))
    assert steps_and_places(run) == [(1, 0), (2, 4)]


def test_a_row_of_an_earlier_attempt_never_replaces_a_later_one(tmp_path: Path) -> None:
    run = written(tmp_path / "run", (1, 2), (2, 2), (1, 1), (3, 2))
    assert steps_and_places(run) == [(1, 0), (2, 1), (3, 3)]


def test_a_row_in_part_does_not_count(tmp_path: Path) -> None:
    run = written(tmp_path / "run", (1, 1), (2, 1))
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "lo')
    assert steps_and_places(run) == [(1, 0), (2, 1)]
    assert effective_rows(written(tmp_path / "empty")) == []


def test_attempts_are_those_of_rows_and_of_plans(tmp_path: Path) -> None:
    run = written(tmp_path / "run", (1, 1), (2, 2))
    assert attempts_of(run) == 2
    rows = [{"at": 1.0, "event": "planned", "attempt": 3}, {"at": 2.0, "event": "running"}]
    whole = "".join(json.dumps(one) + "\n" for one in rows)
    (run / "events.jsonl").write_text(whole + '{"at": 3.0, "attempt": 9}')
    assert attempts_of(run) == 3
    (run / "metrics.jsonl").unlink()
    assert attempts_of(run) == 3
    assert attempts_of(written(tmp_path / "new")) == 0

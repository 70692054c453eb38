"""The rows that count, of a run that went back to a checkpoint or was killed while it wrote one."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from tests.client.output.test_run_folder import row

from farflung.client.output.history import Recorded, attempts_of, counted, effective_rows, recorded_until
from farflung.client.output.records import StepRow, ValidationRow
from farflung.client.output.run_folder import RunFolder
from farflung.schedule.units import Units


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


def test_an_evaluation_counts_until_the_step_before_it_runs_again() -> None:
    rows: list[StepRow | ValidationRow] = [ValidationRow(0, 9.0, {}, 1), row(1, 5.0), row(2, 4.0)]
    rows += [ValidationRow(2, 4.5, {}, 1), msgspec.structs.replace(row(2, 4.0), attempt=2)]
    assert counted(rows) == [rows[0], rows[1], rows[4]]
    again = ValidationRow(2, 4.25, {}, 2)
    assert counted([*rows, again, again]) == [rows[0], rows[1], rows[4], again]


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


UNITS = Units(steps=6, microbatches=2, validate_every=2, validation_microbatches=2)
"""Evaluations are units 0, 3, 6 and 9; steps 1 to 6 are units 1, 2, 4, 5, 7 and 8."""


def told(folder: Path, *events: dict[str, object]) -> Path:
    """Add these events to a run folder."""
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(json.dumps({"at": 1.0, **event}) + "\n" for event in events)
    return folder


def validated(step: int, words: str = "validated") -> dict[str, object]:
    return {"event": words, "step": step, "loss": 1.0}


def test_the_first_unit_that_a_folder_lacks_is_a_step_or_an_evaluation(tmp_path: Path) -> None:
    assert recorded_until(written(tmp_path / "new"), UNITS) == Recorded(0, 0, None)
    run = told(written(tmp_path / "run"), validated(0))
    assert recorded_until(run, UNITS) == Recorded(1, 0, None)
    run = told(written(tmp_path / "two", (1, 1), (2, 1)), validated(0))
    assert recorded_until(run, UNITS) == Recorded(3, 2, 1.0)
    assert recorded_until(told(run, validated(2)), UNITS) == Recorded(4, 2, 1.0)
    every = [(step, 1) for step in range(1, 7)]
    run = told(written(tmp_path / "every", *every), *(validated(step) for step in (0, 2, 4, 6)))
    assert recorded_until(run, UNITS) == Recorded(10, 6, 5.0)


def test_both_evaluations_of_a_job_whose_codecs_are_chosen_count(tmp_path: Path) -> None:
    units = Units(4, 2, None, 2, validate_twice=True)
    run = told(written(tmp_path / "run"), validated(0, "validated with codecs"))
    assert recorded_until(run, units).unit == 1
    assert recorded_until(told(run, validated(0)), units).unit == 2


def test_what_a_run_went_back_behind_is_not_recorded(tmp_path: Path) -> None:
    rows = [(1, 1), (2, 1), (3, 1)]
    back = {"event": "rolled back", "attempt": 1, "step": 2}
    run = told(written(tmp_path / "run", *rows), validated(0), validated(2), back)
    assert recorded_until(run, UNITS) == Recorded(3, 2, 1.0)
    planned = {"event": "planned", "attempt": 1}
    run = told(written(tmp_path / "resumed", *rows), planned, {"event": "resumed", "step": 2})
    assert recorded_until(run, UNITS) == Recorded(3, 2, 1.0)

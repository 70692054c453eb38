"""The run folder: an older run is kept, two runs never share one, and a full disk leaves whole rows."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from farflung.client.output.records import StepRow, Summary
from farflung.client.output.run_folder import RunFolder
from farflung.client.output.run_record import RunOptions, RunRecord, read_record
from farflung.errors import JobError, RunFailed
from farflung.plans import Placement, Plan


def row(step: int, loss: float = 1.5) -> StepRow:
    return StepRow(
        step=step, loss=loss, samples=8, seconds=0.5, samples_per_second=16.0, bytes_on_wire=100,
        attempt=1, learning_rate=0.1, gradient_norm=2.0,
    )  # fmt: skip


def summary(state: str) -> Summary:
    return Summary(
        state=state, reason="", steps=1, train_loss=1.5, validation_loss=None, initial_validation_loss=None,
        seconds=1.0, loading_seconds=0.1, workers=2, bytes_on_wire=100, loading_bytes=10, weights_step=1,
        job="job-1", corpus=None,
    )  # fmt: skip


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_leaves_its_files(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs" / "gpt")
    run.add_event(1.0, "planned", workers=["a", "b"])
    run.add_step(row(1))
    run.add_step(row(2))
    run.write_plan(Plan([Placement(0, ["a"], 1, 2, 3)], [], 4, 2))
    run.write_summary(summary("done"))
    run.close()
    assert [entry["step"] for entry in lines(run.path / "metrics.jsonl")] == [1, 2]
    assert lines(run.path / "events.jsonl") == [{"at": 1.0, "event": "planned", "workers": ["a", "b"]}]
    assert json.loads((run.path / "plan.json").read_text())["placements"][0]["workers"] == ["a"]
    assert json.loads((run.path / "summary.json").read_text())["state"] == "done"


def test_a_loss_that_is_no_number_is_valid_json(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run")
    run.add_step(row(1, float("nan")))
    run.close()
    assert lines(run.path / "metrics.jsonl")[0]["loss"] is None


def test_an_older_run_is_set_aside_and_kept(tmp_path: Path) -> None:
    for expected in (None, tmp_path / "run.1", tmp_path / "run.2"):
        run = RunFolder.create(tmp_path / "run")
        assert run.previous == expected
        run.write_summary(summary("done"))
        run.close()
    assert json.loads((tmp_path / "run.1" / "summary.json").read_text())["state"] == "done"


def test_a_run_without_a_step_gives_an_older_one_its_name_back(tmp_path: Path) -> None:
    for steps in (1, 0):
        run = RunFolder.create(tmp_path / "run")
        for step in range(steps):
            run.add_step(row(step + 1))
        assert run.restore_previous() is (steps == 0)
        run.close()
    assert run.path == tmp_path / "run.2" and not (tmp_path / "run.1").exists()
    assert [entry["step"] for entry in lines(tmp_path / "run" / "metrics.jsonl")] == [1]


def test_the_folder_of_a_run_that_never_began_goes_again(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs" / "gpt")
    run.add_event(1.0, "submitted")
    run.write_summary(summary("failed"))
    run.close()
    assert run.discard() and not run.path.exists()


def test_an_older_run_has_its_name_back_from_a_run_that_never_began(tmp_path: Path) -> None:
    older = RunFolder.create(tmp_path / "gpt")
    older.add_step(row(1))
    older.close()
    run = RunFolder.create(tmp_path / "gpt")
    run.close()
    assert run.discard()
    assert [one.name for one in tmp_path.iterdir()] == ["gpt"]
    assert len(lines(tmp_path / "gpt" / "metrics.jsonl")) == 1


@pytest.mark.parametrize("kept", ["the user's folder", "an earlier run", "a run with a step", "a log"])
def test_no_folder_goes_that_is_not_only_of_a_run_that_never_began(tmp_path: Path, kept: str) -> None:
    path = tmp_path / "gpt"
    if kept == "the user's folder":
        path.mkdir()
    run = RunFolder.create(path)
    if kept == "an earlier run":
        run.close()
        run = RunFolder.reopen(path)
    if kept == "a run with a step":
        run.add_step(row(1))
    if kept == "a log":
        (path / "train.log").write_text("printed")
    before = contents(path)
    run.close()
    assert not run.discard() and contents(path) == before


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "run")
    for refuse in (RunFolder.check, RunFolder.create):
        with pytest.raises(JobError, match="another run is writing"):
            refuse(tmp_path / "run")
    first.add_step(row(1))
    first.close()
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 1


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(JobError, match="has files that are not of a run"):
        RunFolder.create(tmp_path)
    with pytest.raises(JobError, match="found a file"):
        RunFolder.create(tmp_path / "thesis.tex")
    with pytest.raises(JobError, match="cannot be made"):
        RunFolder.create(tmp_path / "thesis.tex" / "run")


def test_a_check_changes_nothing(tmp_path: Path) -> None:
    RunFolder.check(tmp_path / "run")
    assert not any(tmp_path.iterdir())
    RunFolder.create(tmp_path / "run").close()
    RunFolder.check(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_full_disk_ends_with_one_line_and_whole_rows(tmp_path: Path) -> None:
    """A limit on file size makes the kernel take a part of a row and refuse the rest, as a full disk does."""
    program = """
        import resource, signal, sys
        from pathlib import Path
        import msgspec
        from farflung.client.output.records import StepRow
        from farflung.client.output.run_folder import RunFolder
        from farflung.errors import RunFailed
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        run = RunFolder.create(Path(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            for step in range(1, 100):
                run.add_step(StepRow(step, 1.0, 8, 0.5, 16.0, 100, 1, 0.1, 2.0))
        except RunFailed as error:
            print(step, error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "run")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    failed_step, _, message = done.stdout.strip().partition(" ")
    assert message.count("\n") == 0 and "what was written before is kept" in message
    content = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert content.endswith("\n") and len(content) <= 1000
    assert [entry["step"] for entry in lines(tmp_path / "run" / "metrics.jsonl")] == list(
        range(1, int(failed_step))
    )


def test_a_document_that_does_not_fit_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder.create(tmp_path / "run")
    run.write_summary(summary("done"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunFailed, match="No space left on device"):
        run.write_summary(summary("failed"))
    run.close()
    assert json.loads((run.path / "summary.json").read_text())["state"] == "done"
    assert sorted(path.name for path in run.path.iterdir()) == [
        "events.jsonl",
        "metrics.jsonl",
        "summary.json",
    ]


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_that_is_opened_again_keeps_its_rows_and_files(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "run")
    first.add_step(row(1))
    first.add_event(1.0, "planned", attempt=1)
    first.write_record(RunRecord(run="r1", farflung="0.1", job="/job.py", options=RunOptions(steps=3)))
    first.close()
    before = contents(tmp_path)
    again = RunFolder.reopen(tmp_path / "run")
    assert contents(tmp_path) == before
    assert again.previous is None and not again.restore_previous()
    again.add_step(row(2))
    again.close()
    assert [entry["step"] for entry in lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2]
    assert len(lines(tmp_path / "run" / "events.jsonl")) == 1
    assert read_record(tmp_path / "run").options.steps == 3
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("torn", [b'{"step":2,"lo', b"x" * 200_000, b'{"step":2}'])
def test_a_part_of_a_row_goes_when_the_next_one_comes(tmp_path: Path, torn: bytes) -> None:
    first = RunFolder.create(tmp_path / "run")
    first.add_step(row(1))
    first.close()
    metrics = tmp_path / "run" / "metrics.jsonl"
    with metrics.open("ab") as file:
        file.write(torn)
    before = contents(tmp_path)
    again = RunFolder.reopen(tmp_path / "run")
    assert contents(tmp_path) == before
    again.add_step(row(2))
    again.add_step(row(3))
    again.close()
    assert [entry["step"] for entry in lines(metrics)] == [1, 2, 3]


def test_a_file_with_only_a_part_of_a_row_begins_anew(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run").close()
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b'{"step":')
    again = RunFolder.reopen(tmp_path / "run")
    again.add_step(row(1))
    again.close()
    assert [entry["step"] for entry in lines(tmp_path / "run" / "metrics.jsonl")] == [1]


def test_a_run_that_goes_on_is_not_opened_again(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "run")
    for refuse in (RunFolder.check_earlier, RunFolder.reopen):
        with pytest.raises(JobError, match=r"another run is writing to .*: wait for it, or stop it first"):
            refuse(tmp_path / "run")
    first.close()
    second = RunFolder.reopen(tmp_path / "run")
    with pytest.raises(JobError, match="another run is writing"):
        RunFolder.reopen(tmp_path / "run")
    second.close()


def test_what_is_no_run_is_not_opened_again(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    for path, found in [("nowhere", "nothing"), ("thesis.tex", "a file"), ("", "another folder")]:
        with pytest.raises(JobError, match=f"expected the folder of a run at .*, found {found}"):
            RunFolder.reopen(tmp_path / path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_knows_whether_a_checkpoint_was_saved(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run")
    assert not run.has_checkpoint()
    for step in (None, 3):
        run.write_summary(msgspec.structs.replace(summary("cancelled"), checkpoint_step=step))
        assert run.has_checkpoint() is (step is not None)
    (tmp_path / "run" / "summary.json").write_text("{")
    assert not run.has_checkpoint()
    run.close()


def with_an_older_run(path: Path) -> RunFolder:
    older = RunFolder.create(path)
    older.add_step(row(1))
    older.close()
    return RunFolder.create(path)


def test_a_refused_run_leaves_nothing_and_no_other_takes_its_name_before(tmp_path: Path) -> None:
    path = tmp_path / "run"
    refused = with_an_older_run(path)
    refused.write_record(RunRecord(run="r1", farflung="0.1", job="/job.py", options=RunOptions(steps=3)))
    with pytest.raises(JobError, match="another run is writing"):
        RunFolder.create(path)
    assert refused.discard()
    refused.close()
    assert [entry["step"] for entry in lines(path / "metrics.jsonl")] == [1]
    assert [*tmp_path.iterdir()] == [path]


def test_a_refused_runs_folder_that_cannot_be_removed_gives_an_older_run_its_name_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = with_an_older_run(tmp_path / "run")

    def busy(_: Path) -> None:
        raise OSError("busy")

    monkeypatch.setattr(Path, "rmdir", busy)
    assert not refused.discard()
    assert refused.restore_previous()
    refused.close()
    assert [entry["step"] for entry in lines(tmp_path / "run" / "metrics.jsonl")] == [1]

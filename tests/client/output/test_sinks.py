"""What sinks write can be read back with the tools that it is for."""

from __future__ import annotations

import csv
import sys
import threading
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.client.output.test_run_folder import row

from farflung.client.output.sinks import LoggingObserver, LogTo, Sink, open_sink, parse_log
from farflung.errors import JobError


def log_some(log: LogTo, folder: Path, begin: int = 1) -> None:
    """Two steps and an evaluation after the second."""
    observer = LoggingObserver(partial(open_sink, log, folder, "some"), pytest.fail)
    observer.stepped(row(begin, 2.5))
    observer.stepped(msgspec.structs.replace(row(begin + 1, 1.5), gradient_norm=None))
    observer.validated(begin + 1, 1.25, {"accuracy": 0.75})
    observer.close()


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_files_have_a_row_for_each_step_and_evaluation(tmp_path: Path) -> None:
    log_some(parse_log("csv"), tmp_path)
    log_some(parse_log(f"csv:{tmp_path / 'csv'}"), tmp_path / "elsewhere", begin=3)  # a resumed run
    train, validation = (rows_of(tmp_path / f"csv/{part}.csv") for part in ("train", "validation"))
    assert [(found["step"], found["loss"]) for found in train] == [
        ("1", "2.5"),
        ("2", "1.5"),
        ("3", "2.5"),
        ("4", "1.5"),
    ]
    assert train[0]["gradient_norm"] and not train[1]["gradient_norm"]
    assert validation == [{"step": step, "loss": "1.25", "accuracy": "0.75"} for step in ("2", "4")]


def test_tensorboard_reads_what_is_logged_for_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: it brings grpcio and protobuf")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_some(parse_log("tensorboard"), tmp_path)
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    read = {name: [(one.step, one.value) for one in found.Scalars(name)] for name in found.Tags()["scalars"]}
    assert read["train/loss"] == [(1, 2.5), (2, 1.5)] and len(read["train/gradient_norm"]) == 1
    assert (read["validation/loss"], read["validation/accuracy"]) == ([(2, 1.25)], [(2, 0.75)])


def test_a_log_that_cannot_be_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match=r"--log takes csv, tensorboard, .* found 'cvs'"):
        parse_log("cvs:somewhere")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(JobError, match=r"--log wandb needs a package that is missing .*: pip install wandb"):
        parse_log("wandb")
    (tmp_path / "file").touch()
    log = LogTo("csv", str(tmp_path / "file"))
    with pytest.raises(JobError, match="--log csv cannot be opened: FileExistsError"):
        LoggingObserver(partial(open_sink, log, tmp_path, "some"), pytest.fail)


def test_a_sink_that_fails_costs_one_warning_and_is_closed() -> None:
    warnings: list[str] = []
    threads: set[str] = set()
    closed: list[str] = []

    class Failing(Sink):
        def add(self, step: int, numbers: object) -> None:
            threads.add(threading.current_thread().name)
            raise OSError("the server is gone")

        def close(self) -> None:
            closed.append("once")
            raise OSError("and stays away")

    observer = LoggingObserver(Failing, warnings.append)
    for step in (1, 2):
        observer.stepped(row(step))
    observer.close()
    assert warnings == ["warning: the log ends here, and the run goes on: OSError: the server is gone"]
    assert closed == ["once"]
    assert len(threads) == 1 and not threads & {threading.current_thread().name}

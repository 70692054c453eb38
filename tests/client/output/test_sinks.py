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
from tests.localhost.jobs import job

from farflung.client.output.configuration import configuration_of
from farflung.client.output.log_observer import LoggingObserver, begin_log
from farflung.client.output.records import Outcome
from farflung.client.output.run_folder import RunFolder
from farflung.client.output.run_record import RunOptions, RunRecord
from farflung.client.output.sinks import SINKS, LogTo, Opening, Sink, open_sink, parse_log
from farflung.errors import JobError
from farflung.runtime.optimizers.declared import SGD

CONFIGURATION = {"steps": 2, "optimizer.lr": 0.5, "codec": "dense"}


def log_some(log: LogTo, folder: Path, begin: int = 1) -> None:
    """Two steps and an evaluation after the second."""
    observer = LoggingObserver(partial(open_sink, log, folder, "some", CONFIGURATION), pytest.fail)
    observer.stepped(row(begin, 2.5))
    observer.stepped(msgspec.structs.replace(row(begin + 1, 1.5), gradient_norm=None))
    observer.validated(begin + 1, 1.25, {"accuracy": 0.75})
    observer.ended("failed", "no worker is left")
    observer.close()
    observer.wait()


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
    noted = {found["name"]: found["value"] for found in rows_of(tmp_path / "csv/run.csv")}
    assert noted == {
        "steps": "2",
        "optimizer.lr": "0.5",
        "codec": "dense",
        "outcome": "failed",
        "reason": "no worker is left",
    }
    assert validation == [{"step": step, "loss": "1.25", "accuracy": "0.75"} for step in ("2", "4")]


def test_tensorboard_reads_what_is_logged_for_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: it brings grpcio and protobuf")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_some(parse_log("tensorboard"), tmp_path)
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    read = {name: [(one.step, one.value) for one in found.Scalars(name)] for name in found.Tags()["scalars"]}
    assert read["train/loss"] == [(1, 2.5), (2, 1.5)] and len(read["train/gradient_norm"]) == 1
    texts = {
        name: found.Tensors(name)[0].tensor_proto.string_val[0].decode() for name in found.Tags()["tensors"]
    }
    assert texts["outcome/text_summary"] == "failed: no worker is left"
    assert "|optimizer.lr|`0.5`|" in texts["configuration/text_summary"]
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
        LoggingObserver(partial(open_sink, log, tmp_path, "some", {}), pytest.fail)


def test_a_sink_that_fails_costs_one_warning_and_is_closed() -> None:
    warnings: list[str] = []
    threads: set[str] = set()
    closed: list[str] = []

    class Failing(Sink):
        def add(self, step: int, numbers: object) -> None:
            threads.add(threading.current_thread().name)
            raise OSError("the server is gone")

        def close(self, outcome: Outcome) -> None:
            closed.append(str(outcome))
            raise OSError("and stays away")

    observer = LoggingObserver(Failing, warnings.append)
    for step in (1, 2):
        observer.stepped(row(step))
    observer.ended("done", "")
    observer.close()
    observer.wait()
    assert warnings == ["warning: the log ends here, and the run goes on: OSError: the server is gone"]
    assert closed == ["done"]
    assert len(threads) == 1 and not threads & {threading.current_thread().name}


def test_a_service_that_hangs_is_given_up_in_one_line() -> None:
    """Neither the end of a run nor its beginning waits for it without limit."""
    warnings: list[str] = []
    answers = threading.Event()
    closed: list[Outcome] = []

    class Hanging(Sink):
        def add(self, step: int, numbers: object) -> None:
            answers.wait(60)

        def close(self, outcome: Outcome) -> None:
            closed.append(outcome)

    observer = LoggingObserver(Hanging, warnings.append)
    for step in (1, 2, 3):
        observer.stepped(row(step))
    observer.close()
    observer.wait(0.5)
    (warning,) = warnings
    assert "not closed within 0.5 s and is given up: it may lack 2 rows and how the run ended" in warning
    answers.set()
    observer.wait()
    assert len(warnings) == 1 and closed

    answers.clear()

    def late() -> Sink:
        answers.wait(60)
        return Hanging()

    with pytest.raises(JobError, match=r"the service of --log has not answered within 0.1 s: check it"):
        LoggingObserver(late, pytest.fail, open_seconds=0.1)
    answers.set()


def test_a_resumed_run_goes_on_in_the_run_that_the_service_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id is in the run folder; if the service has lost the run, there is a warning and a new one."""
    stored: dict[str, list[int]] = {}

    class Service(Sink):
        def __init__(self, opening: Opening) -> None:
            if opening.run_id and opening.run_id not in stored:
                raise LookupError(f"no run {opening.run_id}")
            self.run_id = opening.run_id or f"{opening.name}-{len(stored)}"
            self._steps = stored.setdefault(self.run_id, [])

        def add(self, step: int, numbers: object) -> None:
            self._steps.append(step)

        def close(self, outcome: Outcome) -> None: ...

    monkeypatch.setitem(SINKS, "wandb", Service)
    folder = RunFolder.create(tmp_path / "run")
    warnings: list[str] = []
    some = job(name="chain")

    def log_step(step: int, where: str = "") -> None:
        record = RunRecord.of("", RunOptions())
        observer = begin_log(LogTo("wandb", where), some, folder, record, warnings.append)
        observer.stepped(row(step))
        observer.close()
        observer.wait()

    log_step(1)
    log_step(2)
    assert (stored, warnings) == ({"chain-0": [1, 2]}, [])
    log_step(3, where="another")
    assert stored == {"chain-0": [1, 2], "another-1": [3]}
    del stored["chain-0"]
    log_step(4)
    assert stored == {"another-1": [3], "chain-1": [4]} and folder.log_runs()["wandb:chain"] == "chain-1"
    (warning,) = warnings
    assert warning.endswith("LookupError: no run chain-0. So wandb gets a new run, without the steps before")
    folder.close()


def test_the_configuration_has_the_numbers_of_job_and_options() -> None:
    some = job(optimizer=SGD(lr=0.25, momentum=0.5), stop_early=None)
    record = RunRecord.of("", RunOptions(codec=["int8", "a->b=int4"], checkpoint_to="s3://me:secret@host/x"))
    found = configuration_of(some, record)
    assert (found["optimizer.class"], found["optimizer.lr"], found["optimizer.momentum"]) == (
        "SGD",
        0.25,
        0.5,
    )
    assert (found["batch"], found["model.class"], found["run"]) == (some.batch, "Chain", record.run)
    assert found["model.parameters"] == sum(one.numel() for one in some.model.parameters())
    assert found["options.codec"] == "int8, a->b=int4"
    assert not any("secret" in str(value) for value in found.values())
    assert not {"data", "validation", "clip"} & found.keys()

"""A run that is stopped and resumed is one run for services that it is logged to, with the real packages."""

from __future__ import annotations

import csv
import json
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.localhost.jobs import Vectors, item_of_step, job

import farflung
from farflung.client.beginning.source import PythonJob
from farflung.client.options.asked import Request, ask
from farflung.client.output.records import Outcome
from farflung.client.output.run_record import RunOptions
from farflung.client.output.sinks import SINKS, Opening, Sink
from farflung.errors import RunFailed

pytestmark = pytest.mark.processes

FIRST, LAST = 3, 6


class Stored(NamedTuple):
    """What a service has of the job, in all of its runs: how many runs, steps, the rate, and outcomes."""

    runs: int
    steps: list[int]
    rate: float
    outcome: str


def csv_files(folder: Path, home: Path) -> Stored:
    with (folder / "csv/train.csv").open(newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    noted = noted_in(folder / "csv")
    return Stored(1, steps, float(noted["optimizer.lr"]), noted["outcome"])


def noted_in(folder: Path) -> dict[str, str]:
    """Configuration and outcome in a folder of CSV files."""
    with (folder / "run.csv").open(newline="") as file:
        return {row["name"]: row["value"] for row in csv.DictReader(file)}


def mlflow_store(folder: Path, home: Path) -> Stored:
    import mlflow

    runs: Any = mlflow.search_runs(experiment_names=["chain"], output_format="list")
    history = mlflow.MlflowClient().get_metric_history(runs[0].info.run_id, "train/loss")
    rate, tags = runs[0].data.params["optimizer.lr"], runs[0].data.tags
    assert (runs[0].info.status, tags["resumed.steps"]) == ("FINISHED", str(len(history)))
    return Stored(len(runs), [one.step for one in history], float(rate), tags["outcome"])


def trackio_store(folder: Path, home: Path) -> Stored:
    with sqlite3.connect(home / "trackio/chain.db") as store:
        rows = store.execute("select run_name, step, metrics from metrics order by id").fetchall()
        (config,) = store.execute("select config from configs").fetchone()
        alerts = store.execute("select title from alerts order by id").fetchall()
    assert alerts[0] == ("run cancelled",)
    steps = [step for _, step, numbers in rows if b"train/loss" in numbers]
    outcome = alerts[-1][0].removeprefix("run ")
    return Stored(len({row[0] for row in rows}), steps, json.loads(config)["optimizer.lr"], outcome)


def records_of(path: Path) -> Iterator[bytes]:
    """The records of a W&B file, which is a log as LevelDB's: parts of records in blocks of 32 KiB."""
    found, position, record = path.read_bytes(), 7, b""
    while position + 7 <= len(found):
        left = 32_768 - position % 32_768
        if left < 7:
            position += left
            continue
        size, kind = struct.unpack_from("<HB", found, position + 4)
        position += 7 + size
        record += found[position - size : position]
        if kind in (1, 4):  # a whole one, or the last part of one
            yield record
            record = b""


def wandb_files(folder: Path, home: Path) -> Stored:
    """W&B writes a file for each part; they have one id, under which `wandb sync` puts them together."""
    from wandb.proto.wandb_internal_pb2 import Record

    ids, steps, noted = set[str](), list[int](), dict[str, Any]()
    for path in sorted(folder.glob("wandb/wandb/offline-run-*/*.wandb")):
        for data in records_of(path):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            row = {"/".join(one.nested_key) or one.key: one.value_json for one in record.history.item}
            steps += [int(row["step"])] if "train/loss" in row else []
            for one in [*record.config.update, *record.run.config.update, *record.summary.update]:
                noted["/".join(one.nested_key) or one.key] = json.loads(one.value_json)
    return Stored(len(ids), steps, noted["optimizer.lr"], noted["outcome"])


def tensorboard_files(folder: Path, home: Path) -> Stored:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    texts = {
        name: [one.tensor_proto.string_val[0].decode() for one in found.Tensors(f"{name}/text_summary")]
        for name in ("configuration", "outcome")
    }
    rate = texts["configuration"][-1].partition("|optimizer.lr|`")[2].partition("`")[0]
    steps = [one.step for one in found.Scalars("train/loss")]
    return Stored(1, steps, float(rate), texts["outcome"][-1])


READERS: dict[str, Callable[[Path, Path], Stored]] = {
    "csv": csv_files,
    "tensorboard": tensorboard_files,
    "wandb": wandb_files,
    "mlflow": mlflow_store,
    "trackio": trackio_store,
}


@pytest.mark.full
@pytest.mark.parametrize("kind", READERS)
def test_a_resumed_run_goes_on_in_the_log(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    if kind != "csv":
        pytest.importorskip(kind, reason=f"{kind} is not installed: it is the user's own to choose")
    if kind == "mlflow":
        pytest.importorskip("sqlalchemy", reason="MLflow's local store needs sqlalchemy")
    folder = tmp_path / "run"
    with farflung.local(2, device="cpu") as fleet:
        run = fleet.train(
            job(steps=100_000),
            log=kind,
            out=folder,
            checkpoint_every="end",
            on_step=lambda row: run.stop() if row.step == FIRST else None,
        )
        stopped = run.wait()
        assert stopped.state == "cancelled"
        fleet.train(job(steps=stopped.steps + LAST), resume=folder).wait()
    found = READERS[kind](folder, tmp_path)
    assert found == Stored(1, list(range(1, stopped.steps + LAST + 1)), 0.5, "done")


def test_a_log_says_why_a_run_failed(tmp_path: Path) -> None:
    with farflung.local(2, device="cpu") as fleet:
        run = fleet.train(job(data=Vectors(broken=item_of_step(2))), log="csv", out=tmp_path / "run")
        with pytest.raises(RunFailed) as failed:
            run.wait()
    noted = noted_in(tmp_path / "run/csv")
    assert noted["outcome"] == "failed" and "the file is gone" in noted["reason"]
    assert noted["reason"] == str(failed.value)


def test_a_run_that_never_begins_closes_its_log(tmp_path: Path) -> None:
    request = Request(RunOptions(local=2, device="cpu", log="csv"), tmp_path / "run")
    with farflung.local(2, device="cpu") as fleet:
        fleet.begin(ask(request), PythonJob(job()))
    noted = noted_in(tmp_path / "run/csv")
    assert (noted["outcome"], noted["reason"]) == ("cancelled", "the fleet was closed before the run began")


@pytest.mark.full
def test_an_interrupt_ends_the_waiting_for_a_log_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run is done all the same."""
    is_closing, may_close = threading.Event(), threading.Event()

    class Hanging(Sink):
        def __init__(self, opening: Opening) -> None: ...

        def add(self, step: int, numbers: object) -> None: ...

        def close(self, outcome: Outcome) -> None:
            is_closing.set()
            may_close.wait(120)

    monkeypatch.setitem(SINKS, "csv", Hanging)
    monkeypatch.setattr("farflung.client.output.log_observer.CLOSE_SECONDS", 120.0)
    with farflung.local(2, device="cpu") as fleet:
        run = fleet.train(job(), log="csv", out=tmp_path / "run")
        assert is_closing.wait(60)
        run.end_at_once()
        assert run.wait(60).state == "done"
    assert "is given up: it may lack 0 rows and how the run ended" in caplog.text
    may_close.set()
    for thread in [one for one in threading.enumerate() if one.name == "farflung-log"]:
        thread.join(60)
    assert "exception" not in caplog.text

"""A run that is stopped and resumed is one run for services that it is logged to, with the real packages."""

from __future__ import annotations

import csv
import json
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.localhost.jobs import job

import farflung

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
    with (folder / "csv/run.csv").open(newline="") as file:
        told = {row["name"]: row["value"] for row in csv.DictReader(file)}
    return Stored(1, steps, float(told["optimizer.lr"]), told["outcome"])


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

    ids, steps, told = set[str](), list[int](), dict[str, Any]()
    for path in sorted(folder.glob("wandb/wandb/offline-run-*/*.wandb")):
        for data in records_of(path):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            row = {"/".join(one.nested_key) or one.key: one.value_json for one in record.history.item}
            steps += [int(row["step"])] if "train/loss" in row else []
            for one in [*record.config.update, *record.run.config.update, *record.summary.update]:
                told["/".join(one.nested_key) or one.key] = json.loads(one.value_json)
    return Stored(len(ids), steps, told["optimizer.lr"], told["outcome"])


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

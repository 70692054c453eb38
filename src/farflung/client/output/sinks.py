"""Sinks: where a run is logged beside its own files, such as CSV, TensorBoard, W&B or OpenTelemetry."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from farflung.client.output.configuration import Configuration
from farflung.client.output.records import Outcome
from farflung.errors import JobError


class LogTo(NamedTuple):
    """Where to log: the kind of sink, and the folder or project that was asked for, or an empty text."""

    kind: str
    where: str


def parse_log(given: str) -> LogTo:
    """Parse `--log KIND[:WHERE]`.

    Raises
    ------
    JobError
        There is no such sink, or its package is not installed.
    """
    kind, _, where = given.partition(":")
    if kind not in SINKS:
        raise JobError(f"--log takes {', '.join(SINKS)}, found {kind[:40]!r}")
    module, package = NEEDED.get(kind, ("", ""))
    if module:
        _imported(module, kind, package)
    return LogTo(kind, where)


class Opening(NamedTuple):
    """What a sink begins with.

    `folder` is for its files, `name` that of its project. `configuration` says what is trained and how.
    `run_id` is the service's name for this run if an earlier part of it was logged there, else empty. The
    `job` has a name, too, and the user may have said `where` to log.
    """

    folder: Path
    name: str
    configuration: Configuration
    run_id: str = ""
    job: str = "job"
    where: str = ""


class Happening(NamedTuple):
    """What a run does from `at` on, in Unix seconds, or what happens to it then; `words` may be empty."""

    at: float
    kind: str
    words: str = ""


class Sink(ABC):
    """Takes numbers by name. A step that is done again, after a lost worker, is logged again.

    `run_id` is the service's name for the run, with which a resumed run goes on in it; empty without one.
    """

    run_id = ""

    @abstractmethod
    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log these numbers of one step."""

    def tell(self, happening: Happening) -> None:
        """Log what the run does or waits for now; most sinks have only numbers."""
        return

    @abstractmethod
    def close(self, outcome: Outcome) -> None:
        """Write what is not written yet, and how the run ended."""


class CsvSink(Sink):
    """`train.csv` and `validation.csv` in a folder; the first row names the columns.

    `run.csv` has the configuration and, in the end, the outcome, a name and a value in each row.
    """

    def __init__(self, opening: Opening) -> None:
        self._folder = opening.folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._columns: dict[str, list[str]] = {}
        self._configuration = opening.configuration
        self._write_run({})

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        part = next(iter(numbers)).partition("/")[0]
        row = {"step": step, **{name.partition("/")[2]: value for name, value in numbers.items()}}
        path = self._folder / f"{part}.csv"
        if part not in self._columns:
            self._columns[part] = _columns_of(path) or list(row)
        is_new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self._columns[part], restval="", extrasaction="ignore")
            if is_new:
                writer.writeheader()
            writer.writerow(row)

    def close(self, outcome: Outcome) -> None:
        self._write_run({"outcome": outcome.state, "reason": outcome.reason})

    def _write_run(self, more: Configuration) -> None:
        with (self._folder / "run.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("name", "value"), *{**self._configuration, **more}.items()])


class TensorBoardSink(Sink):
    """Event files for `tensorboard --logdir`; configuration and outcome are on its page of texts."""

    def __init__(self, opening: Opening) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(opening.folder))
        rows = "".join(f"|{name}|`{value}`|\n" for name, value in opening.configuration.items())
        self._writer.add_text("configuration", f"|name|value|\n|-|-|\n{rows}")

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self, outcome: Outcome) -> None:
        self._writer.add_text("outcome", str(outcome))
        self._writer.close()


class WandbSink(Sink):
    """A run of Weights & Biases; `WANDB_MODE=offline` keeps it on this machine."""

    def __init__(self, opening: Opening) -> None:
        opening.folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = import_module("wandb").init(
            project=opening.name,
            dir=str(opening.folder),
            id=opening.run_id or None,
            resume="allow",
            reinit="create_new",  # another run of this program may be logged, too
        )
        self.run_id = self._run.id
        self._run.config.update(opening.configuration, allow_val_change=True)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({"step": step, **numbers})

    def close(self, outcome: Outcome) -> None:
        self._run.summary.update({"outcome": outcome.state, "reason": outcome.reason})
        self._run.finish(exit_code=1 if outcome.state == "failed" else 0)


class MlflowSink(Sink):
    """A run of MLflow, at the tracking server that `MLFLOW_TRACKING_URI` names."""

    def __init__(self, opening: Opening) -> None:
        self._mlflow: Any = import_module("mlflow")
        self._mlflow.set_experiment(opening.name)
        run = self._mlflow.start_run(run_id=opening.run_id or None)
        self.run_id = run.info.run_id
        given = {name: str(value) for name, value in opening.configuration.items()}
        known = run.data.params  # MLflow refuses to change one, such as the steps of a resumed run
        self._mlflow.log_params({name: value for name, value in given.items() if name not in known})
        changed = {name: value for name, value in given.items() if known.get(name, value) != value}
        self._mlflow.set_tags({f"resumed.{name}": value for name, value in changed.items()})

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(numbers), step=step)

    def close(self, outcome: Outcome) -> None:
        try:
            self._mlflow.set_tags({"outcome": outcome.state, "reason": outcome.reason})
        finally:
            self._mlflow.end_run({"done": "FINISHED", "failed": "FAILED"}.get(outcome.state, "KILLED"))


class TrackioSink(Sink):
    """A run of trackio, on this machine; an alert says how it ended."""

    def __init__(self, opening: Opening) -> None:
        self._trackio: Any = import_module("trackio")
        self._run: Any = self._trackio.init(
            project=opening.name,
            name=opening.run_id or None,
            resume="allow",
            config=dict(opening.configuration),
        )
        self.run_id = self._run.name

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self, outcome: Outcome) -> None:
        levels = self._trackio.AlertLevel
        level = levels.ERROR if outcome.state == "failed" else levels.INFO
        self._run.alert(f"run {outcome.state}", outcome.reason or None, level)
        self._run.finish()


def _otel_sink(opening: Opening) -> Sink:
    from farflung.client.output.otel_sink import OtelSink

    return OtelSink(opening)


SINKS: dict[str, Callable[[Opening], Sink]] = {
    "csv": CsvSink,
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
    "mlflow": MlflowSink,
    "trackio": TrackioSink,
    "otel": _otel_sink,
}
NEEDED = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow"),
    "trackio": ("trackio", "trackio"),
    "otel": ("opentelemetry.exporter.otlp.proto.http", "'farflung[otel]'"),
}
"""The module of each sink, and the package that has it."""
IN_FOLDERS = ("csv", "tensorboard")
"""Sinks whose WHERE is a folder; that of `otel` is a collector's URL, that of the others names a project."""


def open_sink(log: LogTo, run_folder: Path, job: str, configuration: Configuration, run_id: str = "") -> Sink:
    """Open a sink: by default in a folder of the run, or under the job's name.

    Raises
    ------
    JobError
        The sink's package refuses, or the folder cannot be written.
    """
    is_folder = log.kind in IN_FOLDERS
    folder = Path(log.where).expanduser() if is_folder and log.where else run_folder / log.kind
    name = job if is_folder or not log.where else log.where
    try:
        return SINKS[log.kind](Opening(folder, name, configuration, run_id, job, log.where))
    except Exception as error:
        raise JobError(f"--log {log.kind} cannot be opened: {in_one_line(error)}") from error


def in_one_line(error: Exception) -> str:
    """What a sink's package raised."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _imported(module: str, kind: str, package: str) -> None:
    try:
        import_module(module)
    except ImportError as error:
        raise JobError(
            f"--log {kind} needs a package that is missing ({error}): pip install {package}"
        ) from None


def _columns_of(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return next(csv.reader(file), [])

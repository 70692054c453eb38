"""Sinks: an observer that writes a run's numbers to CSV files, TensorBoard, W&B, MLflow or trackio."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from farflung.client.output.progress import Observer
from farflung.errors import JobError

if TYPE_CHECKING:
    from farflung.client.output.records import StepRow


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


class Sink(ABC):
    """Takes numbers by name. A step that is done again, after a lost worker, is logged again."""

    @abstractmethod
    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log these numbers of one step."""

    @abstractmethod
    def close(self) -> None:
        """Write what is not written yet."""


class LoggingObserver(Observer):
    """Logs each step as `train/...` and each evaluation as `validation/...`, on a thread of its own.

    A sink that fails costs the run one warning, gets no more numbers, and is closed at the end all the same.

    Raises
    ------
    JobError
        `open_sink` does.
    """

    def __init__(self, opened: Callable[[], Sink], warn: Callable[[str], None]) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="farflung-log")
        self._warn = warn
        self._is_over = False
        try:
            self._sink = self._thread.submit(opened).result()
        except BaseException:
            self._thread.shutdown()
            raise

    def stepped(self, row: StepRow) -> None:
        found = {
            "loss": row.loss,
            "learning_rate": row.learning_rate,
            "gradient_norm": row.gradient_norm,
            "samples_per_second": row.samples_per_second,
            "bytes_on_wire": row.bytes_on_wire,
        }
        self._add(row.step, {f"train/{name}": value for name, value in found.items()})

    def validated(self, step: int, loss: float | None, metrics: Mapping[str, float]) -> None:
        self._add(step, {f"validation/{name}": value for name, value in {"loss": loss, **metrics}.items()})

    def close(self) -> None:
        """Wait until all is logged, and let the sink end its own run."""
        self._thread.submit(self._end)
        self._thread.shutdown()

    def _add(self, step: int, found: Mapping[str, float | None]) -> None:
        numbers = {name: float(value) for name, value in found.items() if value is not None}
        if numbers:
            self._thread.submit(self._guard, lambda: self._sink.add(step, numbers))

    def _end(self) -> None:
        if self._is_over:
            with suppress(Exception):  # its warning has been given
                self._sink.close()
        else:
            self._guard(self._sink.close)

    def _guard(self, write: Callable[[], None]) -> None:
        if self._is_over:
            return
        try:
            write()
        except Exception as error:  # whatever the package raises: a log is no reason to lose a run
            self._is_over = True
            words = " ".join(str(error).split())[:200]
            self._warn(f"warning: the log ends here, and the run goes on: {type(error).__name__}: {words}")


class CsvSink(Sink):
    """`train.csv` and `validation.csv` in a folder; the first row names the columns."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._columns: dict[str, list[str]] = {}

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

    def close(self) -> None:
        """Do nothing: each row is written at once."""


class TensorBoardSink(Sink):
    """Event files for `tensorboard --logdir`."""

    def __init__(self, folder: Path, name: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbSink(Sink):
    """A run of Weights & Biases; `WANDB_MODE=offline` keeps it on this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = import_module("wandb").init(project=name, dir=str(folder))
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({"step": step, **numbers})

    def close(self) -> None:
        self._run.finish()


class MlflowSink(Sink):
    """A run of MLflow, at the tracking server that `MLFLOW_TRACKING_URI` names."""

    def __init__(self, folder: Path, name: str) -> None:
        self._mlflow: Any = import_module("mlflow")
        self._mlflow.set_experiment(name)
        self._mlflow.start_run()

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(numbers), step=step)

    def close(self) -> None:
        self._mlflow.end_run()


class TrackioSink(Sink):
    """A run of trackio, on this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        self._run: Any = import_module("trackio").init(project=name)

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Callable[[Path, str], Sink]] = {
    "csv": CsvSink,
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
    "mlflow": MlflowSink,
    "trackio": TrackioSink,
}
NEEDED = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow"),
    "trackio": ("trackio", "trackio"),
}
"""The module of each sink, and the package that has it."""
IN_FOLDERS = ("csv", "tensorboard")
"""Sinks whose WHERE is a folder; that of the others is a project's or an experiment's name."""


def open_sink(log: LogTo, run_folder: Path, job: str) -> Sink:
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
        return SINKS[log.kind](folder, name)
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        raise JobError(f"--log {log.kind} cannot be opened: {type(error).__name__}: {words}") from error


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

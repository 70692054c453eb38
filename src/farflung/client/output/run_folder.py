"""The run folder, which holds a run's files and stays valid on a full disk and after a kill."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from farflung.client.output.records import StepRow, Summary, ValidationRow
from farflung.client.output.run_record import RUN, RunRecord, SubmittedJob, read_record
from farflung.errors import CheckpointError, JobError, RunFailed
from farflung.files import write_atomically
from farflung.plans import Plan
from farflung.plans.plan_file import NAME as PLAN


class JsonLines:
    """Appends JSON rows to a file, which holds whole rows even after a failed append.

    A row has left this process when `append` returns. If a killed process has left a part of a row, the first
    `append` removes it; until then the file is as it was.
    """

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = _whole_lines(self.descriptor)
        self._is_torn = self._size < os.fstat(self.descriptor).st_size

    def append(self, row: bytes) -> None:
        """Write one row and its line end, or raise `OSError` and leave the file as it was."""
        line = row + b"\n"
        written = 0
        if self._is_torn:
            os.ftruncate(self.descriptor, self._size)
            self._is_torn = False
        try:
            while written < len(line):
                written += os.write(self.descriptor, line[written:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.descriptor, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _whole_lines(descriptor: int) -> int:
    """The size of a file up to its last line end."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - PIECE_BYTES)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


PIECE_BYTES = 65_536
LOOKS, LOOK_SECONDS = 10, 0.01
METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
SUMMARY = "summary.json"
MODEL = "model.safetensors"
EMA_MODEL, EMA_ADAPTER = "ema.safetensors", "ema_adapter"
LOGS = "logs"
CHECKPOINTS = "checkpoints"
ADAPTER = "adapter"
LOG_RUNS = "log_runs.json"

SIGNS = (METRICS, EVENTS, SUMMARY)
"""A folder with one of these was written by a run."""

OWN_FILES = {*SIGNS, RUN, PLAN}
"""What `RunFolder` writes before there is any weight."""


def read_summary(path: Path) -> Summary | None:
    """What `summary.json` in a run folder says; None if it cannot be read, as while the run goes on."""
    try:
        return msgspec.json.decode((path / SUMMARY).read_bytes(), type=Summary)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


class RunFolder:
    """One run's files, open for writing and locked against a second run.

    `previous` is where an older run of that name was moved. The folder `is_new` if it was made for this run.

    Every method may raise `RunFailed` if the disk refuses a write; rows and files written before stay whole.
    """

    def __init__(self, path: Path, previous: Path | None, is_new: bool = False) -> None:
        self.path = path
        self.previous = previous
        self.is_new = is_new
        self._has_steps = False
        with self._guarded():
            self._events = JsonLines(path / EVENTS)
            self._metrics = JsonLines(path / METRICS)
        if not _locked(self._events.descriptor):
            self._events.close()
            self._metrics.close()
            raise JobError(f"another run is writing to {path}: wait for it, or choose another --out")

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Create the folder; an older run at that path is kept under the next free name (`gpt.1`).

        Raises
        ------
        JobError
            The folder cannot be created, holds something other than a run, or a run is writing to it now.
        """
        try:
            path = path.resolve()
            previous = _set_aside(path)
            is_new = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_be_made(path, error) from None
        return cls(path, previous, is_new)

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Open the folder of an earlier run to go on with it.

        Nothing in it changes before something is written: rows are appended, other files replaced.

        Raises
        ------
        JobError
            There is no run at that path, or one is writing to it now.
        """
        cls.check_earlier(path)
        return cls(path.resolve(), None)

    @staticmethod
    def check_earlier(path: Path) -> None:
        """Raise what `reopen` would raise, without changing anything."""
        if not (path / EVENTS).is_file():
            found = "nothing" if not path.exists() else "another folder" if path.is_dir() else "a file"
            raise JobError(f"expected the folder of a run at {path}, found {found}: check --resume")
        try:
            _require_unlocked(path, "wait for it, or stop it first")
        except OSError as error:
            raise JobError(
                f"the run in {path} cannot be resumed here: its files cannot be written ({error.strerror})"
            ) from None

    @staticmethod
    def check(path: Path) -> None:
        """Raise what `create` would raise, without changing anything."""
        try:
            _is_run(path.resolve())
        except OSError as error:
            raise _cannot_be_made(path, error) from None

    @property
    def model_path(self) -> Path:
        """The file of the trained weights."""
        return self.path / MODEL

    @property
    def adapter_path(self) -> Path:
        """The folder of the trained adapter."""
        return self.path / ADAPTER

    @property
    def average_path(self) -> Path:
        """The file of the weights' moving averages."""
        return self.path / EMA_MODEL

    @property
    def average_adapter_path(self) -> Path:
        """The folder of the adapter of moving averages."""
        return self.path / EMA_ADAPTER

    @property
    def logs(self) -> Path:
        """The folder of the logs of processes that a local run starts."""
        return self.path / LOGS

    def add_step(self, row: StepRow) -> None:
        """Append one training step to `metrics.jsonl`."""
        with self._guarded():
            self._metrics.append(msgspec.json.encode(row))
        self._has_steps = True

    def add_validation(self, row: ValidationRow) -> None:
        """Append one evaluation to `metrics.jsonl`."""
        with self._guarded():
            self._metrics.append(msgspec.json.encode(row))

    def add_event(self, at: float, event: str, **facts: Any) -> None:
        """Append one event to `events.jsonl`; `at` is in Unix seconds."""
        with self._guarded():
            self._events.append(msgspec.json.encode({"at": at, "event": event, **facts}))

    def write_plan(self, plan: Plan) -> None:
        """Write `plan.json`."""
        self._write(PLAN, plan)

    def write_summary(self, summary: Summary) -> None:
        """Write `summary.json`."""
        self._write(SUMMARY, summary)

    def write_record(self, record: RunRecord) -> None:
        """Write `run.json`."""
        self._write(RUN, record)

    def add_submitted(self, job: SubmittedJob) -> None:
        """Add the run's job at the broker to `run.json`; without effect if there is no such file."""
        with suppress(CheckpointError):
            self.write_record(msgspec.structs.replace(read_record(self.path), submitted=job))

    def log_runs(self) -> dict[str, str]:
        """What services that the run is logged to call it, by `KIND:PROJECT`; empty if it cannot be read."""
        try:
            return msgspec.json.decode((self.path / LOG_RUNS).read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}

    def add_log_run(self, key: str, run_id: str) -> None:
        """Keep what a service calls the run in `log_runs.json`."""
        self._write(LOG_RUNS, {**self.log_runs(), key: run_id})

    def has_checkpoint(self) -> bool:
        """Whether `summary.json` says that there is a checkpoint; false if it cannot be read."""
        found = read_summary(self.path)
        return found is not None and found.checkpoint_step is not None

    def restore_previous(self) -> bool:
        """Give an older run its name back, unless this run has a step; returns whether it did."""
        if self._has_steps or self.previous is None:
            return False
        name, free = self.path, _free_beside(self.path)
        with self._guarded():
            name.rename(free)
            self.path = free
            self.previous.rename(name)
        self.previous = None
        return True

    def discard(self) -> bool:
        """Remove the folder of a run that never began, and give an older run its name back.

        It stays, and the answer is false, if it was there before, has steps, or has files of others. Close it
        after that: a run that took the name in between would lose its files.
        """
        with suppress(OSError):
            names = {one.name for one in self.path.iterdir()}
            if not self.is_new or self._has_steps or not names <= OWN_FILES:
                return False
            for name in names:
                (self.path / name).unlink()
            self.path.rmdir()
            if self.previous is not None:
                self.previous.rename(self.path)
            return True
        return False

    def close(self) -> None:
        """Close the files; the next run may take the folder's name."""
        self._metrics.close()
        self._events.close()

    def _write(self, name: str, document: msgspec.Struct | dict[str, str]) -> None:
        with self._guarded():
            write_atomically(self.path / name, msgspec.json.format(msgspec.json.encode(document)) + b"\n")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk_failure(self.path, error.strerror or str(error)) from error


def disk_failure(path: Path, trouble: str) -> RunFailed:
    """The error for a disk that refuses a write."""
    return RunFailed(
        f"cannot write to the run folder {path} ({trouble}): what was written before is kept;"
        " make room and run again"
    )


def _cannot_be_made(path: Path, error: OSError) -> JobError:
    return JobError(f"the run folder {path} cannot be made: {error.strerror}; choose another --out")


def _is_run(path: Path) -> bool:
    """Whether the path holds a finished run; JobError if it holds anything else or a run in progress."""
    if path.exists() and not path.is_dir():
        raise JobError(f"expected a run folder at {path}, found a file: choose another --out")
    if not path.is_dir() or not any(path.iterdir()):
        return False
    if not any((path / sign).exists() for sign in SIGNS):
        raise JobError(f"{path} has files that are not of a run: choose an empty or new folder with --out")
    _require_unlocked(path)
    return True


def _set_aside(path: Path) -> Path | None:
    """Rename an older run and return its new path; None if there is none."""
    if not _is_run(path):
        return None
    target = _free_beside(path)
    path.rename(target)
    return target


def _free_beside(path: Path) -> Path:
    """The next free name beside a folder: `gpt.1`."""
    number = 1
    while (target := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return target


def _require_unlocked(path: Path, cure: str = "wait, or choose another --out") -> None:
    if is_being_written(path):
        raise JobError(f"another run is writing to {path}: {cure}")


def is_being_written(path: Path) -> bool:
    """Whether a run is writing to the folder now; raises OSError if its files may not be read.

    For this a shared lock is taken for a moment, for which `_locked` waits.
    """
    if not (path / EVENTS).exists():
        return False
    descriptor = os.open(path / EVENTS, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _locked(descriptor: int) -> bool:
    """Lock a file against other runs; False if one has it. A reader that only looks is gone in no time."""
    for _ in range(LOOKS):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(LOOK_SECONDS)
    return False

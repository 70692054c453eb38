"""Read a run folder as it is: of a run that is done, has failed, was cut off or still goes on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from farflung.client.output.history import counted, rows_in
from farflung.client.output.records import StepRow, Summary, ValidationRow
from farflung.client.output.run_folder import EVENTS, METRICS, SIGNS, SUMMARY, is_being_written
from farflung.client.output.run_record import RUN, RunRecord, read_record
from farflung.errors import CheckpointError, JobError
from farflung.plans import LinkCodec, Placement, Prediction
from farflung.protocol.submitter import CodecChange
from farflung.text import count_of

Row = TypeVar("Row", bound=msgspec.Struct)


class Event(msgspec.Struct, frozen=True):
    """A row of `events.jsonl`: its time (Unix seconds), its name, and the facts that a page shows."""

    at: float
    event: str
    state: str = ""
    reason: str = ""
    name: str = ""
    broker: str = ""
    step: int | None = None
    attempt: int | None = None
    unit: int | None = None
    done: int = 0
    loss: float | None = None
    moves: bool = False
    words: list[str] | str = ""
    links: list[str] = []
    workers: list[str] = []
    replayers: list[str] = []
    newcomers: list[str] = []
    in_order: bool = False
    changes: list[CodecChange] = []
    prediction: Prediction | None = None
    placements: list[Placement] = []
    codecs: list[LinkCodec] = []


@dataclass(frozen=True)
class RecordedRun:
    """What a run folder holds.

    `rows` are those of steps and evaluations that count, `all_rows` also those of steps that the run did
    again, in the order of the file. `warnings` say what is missing or could not be read. `state` is done,
    failed, cancelled, running, left (the broker holds the job) or broken off; `reason` is one line.
    """

    folder: Path
    record: RunRecord | None
    summary: Summary | None
    events: Sequence[Event]
    rows: Sequence[StepRow | ValidationRow]
    all_rows: Sequence[StepRow | ValidationRow]
    state: str
    reason: str
    warnings: Sequence[str]

    @property
    def steps(self) -> list[StepRow]:
        """The rows of the steps that count."""
        return [row for row in self.rows if isinstance(row, StepRow)]

    @property
    def has_times(self) -> bool:
        """Whether it is known when its steps ended; older versions did not write that."""
        steps = self.steps
        return not steps or any(step.at is not None for step in steps)


def read_run(folder: Path) -> RecordedRun:
    """Read the folder of a run; nothing in it is changed.

    Raises
    ------
    JobError
        There is no run at that path, or nothing of it can be read.
    """
    warnings: list[str] = []
    try:
        if not any((folder / sign).is_file() for sign in SIGNS):
            found = "nothing" if not folder.exists() else "another folder" if folder.is_dir() else "a file"
            raise JobError(f"expected a run folder at {folder}, found {found}: `farflung train` writes one")
        events = _rows(folder / EVENTS, warnings, Event)
        rows: list[StepRow | ValidationRow] = _rows(folder / METRICS, warnings, StepRow, ValidationRow)
    except OSError as error:
        raise JobError(f"cannot read the run in {folder}: {error.strerror or error}") from None
    summary = _summary(folder, warnings)
    state, reason = _state(folder, events, summary)
    run = RecordedRun(
        folder.resolve(),
        _record(folder, warnings),
        summary,
        events,
        _valid(counted(rows), events),
        rows,
        state,
        reason,
        warnings,
    )
    if not run.has_times:
        warnings.append(
            "an older farflung wrote this run, without the time of each step: the page goes by steps"
        )
    return run


def _valid(rows: Sequence[StepRow | ValidationRow], events: Sequence[Event]) -> list[StepRow | ValidationRow]:
    """The rows that the run did not go back behind, even if it was cut off before it had later ones."""
    found = list(rows)
    for event in events:
        if event.event == "rolled back" and event.step is not None:
            last, ended = event.step, event.attempt or 0
            found = [row for row in found if row.attempt > ended or row.step <= last]
    return found


def _rows(path: Path, warnings: list[str], *kinds: type[Row]) -> list[Row]:
    """The rows of a file; none of one that is missing. What cannot be read is counted in a warning."""
    if not path.exists():
        warnings.append(f"{path.name} is missing")
        return []
    lines = path.read_bytes().splitlines(keepends=True)  # once: a run that goes on adds rows meanwhile
    rows = list(rows_in(lines, *kinds))
    whole = sum(line.endswith(b"\n") for line in lines)
    if whole < len(lines):
        warnings.append(f"the last row of {path.name} was cut off, and is left out")
    if strange := whole - len(rows):
        warnings.append(f"left out {count_of(strange, 'row')} of {path.name} that cannot be read")
    return rows


def _summary(folder: Path, warnings: list[str]) -> Summary | None:
    path = folder / SUMMARY
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary) if path.exists() else None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        warnings.append(f"{SUMMARY} cannot be read")
        return None


def _record(folder: Path, warnings: list[str]) -> RunRecord | None:
    if not (folder / RUN).exists():  # as of a run that a script began
        return None
    try:
        return read_record(folder)
    except CheckpointError:
        warnings.append(f"{RUN} cannot be read: it is damaged, or of a newer farflung")
        return None


def _state(folder: Path, events: Sequence[Event], summary: Summary | None) -> tuple[str, str]:
    """How the run stands, and why."""
    is_running = False
    with suppress(OSError):  # files that may only be read are not being written here
        is_running = is_being_written(folder)
    if is_running:
        return "running", "it goes on: make the page again for what comes"
    last = events[-1] if events else None
    if last is not None and last.event == "left":
        return "left", last.reason
    if last is not None and last.event == "ended":
        return last.state, last.reason
    if last is None and summary is not None:
        return summary.state, summary.reason
    return "broken off", "its process ended without a last word, as if it was killed or the machine went off"

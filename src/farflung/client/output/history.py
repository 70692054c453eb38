"""Read the rows that a run has written so far, in all of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from farflung.client.output.records import StepRow, ValidationRow
from farflung.client.output.run_folder import EVENTS, METRICS
from farflung.schedule.units import Unit, Units

Row = TypeVar("Row", bound=msgspec.Struct)


class _Attempt(msgspec.Struct):
    attempt: int = 0


def effective_rows(path: Path) -> list[StepRow]:
    """The rows of a run folder's `metrics.jsonl` that count: one for each step, in order.

    A run that went back to a checkpoint has rows of steps that it then lost. Where an attempt begins, the
    rows of earlier attempts for this step and all later ones no longer count. Rows that cannot be read, such
    as one that a killed process left in part, are left out.

    Parameters
    ----------
    path
        The run folder, or the file itself.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    found = read_rows(path / METRICS if path.is_dir() else path, StepRow)
    return [row for row in counted(found) if isinstance(row, StepRow)]


def counted(rows: Iterable[StepRow | ValidationRow]) -> list[StepRow | ValidationRow]:
    """The rows that count, in order, of all rows of a run's `metrics.jsonl`; see `effective_rows`.

    An evaluation after a step that is run again no longer counts either.
    """
    found: list[StepRow | ValidationRow] = []
    for row in rows:
        while found and _place(found[-1]) >= _place(row) and found[-1].attempt <= row.attempt:
            found.pop()
        if not found or _place(found[-1]) < _place(row):
            found.append(row)
    return found


def _place(row: StepRow | ValidationRow) -> tuple[int, bool]:
    """Where a row stands in a run: an evaluation comes after the step that it follows."""
    return row.step, isinstance(row, ValidationRow)


def attempts_of(folder: Path) -> int:
    """How many attempts a run has had, by its metrics and events; 0 if it was never planned.

    Raises
    ------
    OSError
        A file cannot be read.
    """
    files = (path for name in (METRICS, EVENTS) if (path := folder / name).exists())
    return max((row.attempt for path in files for row in read_rows(path, _Attempt)), default=0)


def losses_until(folder: Path, step: int) -> tuple[list[tuple[int, float]], set[int]]:
    """The known losses of a run's first `step` steps, each with its step, and which had alarms about them.

    Raises
    ------
    OSError
        A file cannot be read.
    """
    rows = [row for row in effective_rows(folder) if row.step <= step]
    alarms = (event for event in read_rows(folder / EVENTS, _Alarm) if event.event == "alarm")
    losses = [(row.step, row.loss) for row in rows if row.loss is not None]
    return losses, {alarm.step for alarm in alarms if not alarm.segments}


class _Alarm(msgspec.Struct):
    event: str
    step: int = 0
    segments: list[int] = []


class Recorded(NamedTuple):
    """How far a run folder goes: `unit` is the first unit that it lacks, after `step` steps with `loss`."""

    unit: int
    step: int
    loss: float | None


class _Event(msgspec.Struct):
    event: str
    step: int = 0
    attempt: int = 0


_VALIDATED, _VALIDATED_WITH_CODECS = "validated", "validated with codecs"


def recorded_until(folder: Path, units: Units) -> Recorded:
    """How far the newest part of a run was recorded, by its rows and the events of its evaluations.

    Rows of steps that the run has gone back behind do not count, even if it has no later rows yet.

    Raises
    ------
    OSError
        A file cannot be read.
    """
    attempt, step, behind, validated = 0, 0, 0, set[str]()
    for event in read_rows(folder / EVENTS, _Event):
        attempt = max(attempt, event.attempt)
        if event.event in ("resumed", "rolled back"):
            step, behind, validated = event.step, attempt, set()
        elif event.event in (_VALIDATED, _VALIDATED_WITH_CODECS):
            validated.add(f"{event.event} {event.step}")
    rows = effective_rows(folder)
    counted = [row for row in rows if row.attempt > behind]
    step = counted[-1].step if counted else step
    loss = next((row.loss for row in reversed(rows) if row.step == step), None)
    unit = following = 0 if step == 0 else _of_step(units, step) + 1
    while (one := units.at(following)) is not None and (one.merges or _event_of(units, one) in validated):
        following += 1
        unit = unit if one.merges else following  # nothing records a merge but what comes after it
    return Recorded(unit, step, loss)


def _of_step(units: Units, step: int) -> int:
    """The number of the unit that is training step `step`, counted from 1."""
    number = units.after(step - 1)
    assert number is not None
    return number


def _event_of(units: Units, unit: Unit) -> str:
    """The event that records an evaluation, and its step; empty for another unit."""
    if not unit.evaluates:
        return ""
    kind = _VALIDATED_WITH_CODECS if units.validate_twice and not unit.plain else _VALIDATED
    return f"{kind} {unit.step}"


def read_rows(path: Path, *kinds: type[Row]) -> Iterator[Row]:
    """The rows of a file of JSON lines, each as the first of `kinds` that it fits; the others are left out.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    with path.open("rb") as file:
        yield from rows_in(file, *kinds)


def rows_in(lines: Iterable[bytes], *kinds: type[Row]) -> Iterator[Row]:
    """The same of lines with their ends; one without was left by a killed process, so it ends the file."""
    decoders = [msgspec.json.Decoder(kind) for kind in kinds]
    for line in lines:
        if not line.endswith(b"\n"):
            return
        for decoder in decoders:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                yield decoder.decode(line)
                break

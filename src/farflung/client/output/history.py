"""Read the rows that a run has written so far, in all of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from farflung.client.output.records import StepRow
from farflung.client.output.run_folder import EVENTS, METRICS

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
    rows: list[StepRow] = []
    for row in _rows(path / METRICS if path.is_dir() else path, StepRow):
        while rows and rows[-1].step >= row.step and rows[-1].attempt <= row.attempt:
            rows.pop()
        if not rows or rows[-1].step < row.step:
            rows.append(row)
    return rows


def attempts_of(folder: Path) -> int:
    """How many attempts a run has had, by its metrics and events; 0 if it was never planned.

    Raises
    ------
    OSError
        A file cannot be read.
    """
    files = (path for name in (METRICS, EVENTS) if (path := folder / name).exists())
    return max((row.attempt for path in files for row in _rows(path, _Attempt)), default=0)


def _rows(path: Path, kind: type[Row]) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):  # a killed process left it; the next row replaces it
                return
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                yield decoder.decode(line)

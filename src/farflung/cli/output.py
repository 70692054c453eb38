"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import typer


def print_json(document: Any) -> None:
    """One JSON document on one line of standard output."""
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    sys.stdout.flush()


def print_error(message: str, as_json: bool) -> None:
    """The one line that a failure is told in; with `as_json` also as a document."""
    line = " ".join(message.split())
    if as_json:
        print_json({"error": line})
    note(f"error: {line}")


def note(line: str) -> None:
    """A line for the person at the terminal."""
    sys.stderr.write("".join(letter if letter.isprintable() else "?" for letter in line) + "\n")
    sys.stderr.flush()


def print_text(text: str) -> None:
    """Text that others had a hand in, on standard output: what a terminal would obey is written out."""
    typer.echo("".join(map(_visible, text)))


def _visible(letter: str) -> str:
    if letter.isprintable() or letter in "\n\t":
        return letter
    return letter.encode("unicode_escape").decode()


def size(count: float) -> str:
    """A number of bytes in words: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Seconds as a clock shows them: 1:05, or 2:00:09."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def work(flops: float) -> str:
    """A number of floating-point operations, in three digits: 1.23 MFLOP."""
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP"):
        if flops < 999.5:
            return f"{flops:.3g} {unit}"
        flops /= 1000
    return f"{flops:.3g} TFLOP" if flops < 999.5 else f"{flops:,.0f} TFLOP"


def listed(names: Sequence[str], most: int = 6) -> str:
    """The first names, and how many there are beyond."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def loss_words(loss: float | None) -> str:
    """A loss, or why there is none."""
    return "none (emulated)" if loss is None else f"{loss:.4f}"

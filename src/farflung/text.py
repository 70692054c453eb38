"""Text for messages: counts, numbers, units, short lists, and characters that are safe on a terminal."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

_NOT_THEIRS = [Path(__file__).parent, Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))]


def printable(text: str, replacement: str = "?") -> str:
    """`text` as one line that may be logged or shown: each character that is not printable is replaced.

    For all text that another machine wrote: it could hold line breaks or sequences that steer a terminal.
    """
    return "".join(letter if letter.isprintable() else replacement for letter in text)


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the name of its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def raised(what: str, error: BaseException) -> str:
    """Say what raised in a user's code and where: "data[7] raised KeyError: 'x' (job.py:11)".

    Only the first line of its message is given.
    """
    said = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    frame = user_frame(error)
    return f"{what} raised {message}{f' ({Path(frame.filename).name}:{frame.lineno})' if frame else ''}"


def user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The deepest frame of an error in the user's code: not in farflung, nor in an installed package."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        is_theirs = file.is_absolute() and not {"site-packages", "dist-packages"} & {*file.parts}
        if is_theirs and not any(file.is_relative_to(folder) for folder in _NOT_THEIRS):
            return frame
    return None


def and_more(items: Sequence[str], most: int = 6, separator: str = ", ", joint: str = " and ") -> str:
    """Join the first `most` items, and count the others: "a, b and 3 more"."""
    more = f"{joint}{len(items) - most} more" if len(items) > most else ""
    return separator.join(items[:most]) + more


def count_of(count: int, thing: str, plural: str | None = None) -> str:
    """A number of things: "1 job", "2 jobs", "2 switches" (where `plural` says so)."""
    return f"{count} {thing if count == 1 else plural or f'{thing}s'}"


def with_article(noun: str) -> str:
    """The noun with its indefinite article, such as "a worker" or "an operator"."""
    return f"an {noun}" if noun[:1] in "aeiou" else f"a {noun}"


def format_number(value: float) -> str:
    """A number in three digits, thousands apart: 0.123, 12.3, 30,900."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{float(f'{value:.3g}'):,.0f}"


def format_rate(mbps: float) -> str:
    """A rate in Mbit/s, in three digits: 0.5 Mbit/s, 40 Mbit/s, 1.13 Gbit/s."""
    return f"{mbps:.3g} Mbit/s" if mbps < 999.5 else f"{format_number(mbps / 1000)} Gbit/s"


def format_seconds(seconds: float) -> str:
    """A duration in seconds, in three digits: 12.3 us, 12.3 ms, 1.23 s."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"


def duration_words(seconds: float) -> str:
    """A time that somebody set, in the largest unit that divides it: "1 day", "30 minutes"."""
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size and seconds % size == 0:
            return count_of(int(seconds // size), unit)
    return f"{seconds:g} s"


def format_utc(seconds: float) -> str:
    """A moment in seconds since 1970, to the minute: 2026-11-25 18:00 UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def format_clock(seconds: float) -> str:
    """A duration in seconds as a clock shows it: 1:05, or 2:00:09."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_bytes(count: float) -> str:
    """A number of bytes, with one decimal from 1 kB on: 999 B, 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_flops(flops: float) -> str:
    """A number of floating-point operations, in three digits: 1.23 MFLOP."""
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP"):
        if flops < 999.5:
            return f"{flops:.3g} {unit}"
        flops /= 1000
    return f"{flops:.3g} TFLOP" if flops < 999.5 else f"{flops:,.0f} TFLOP"


def kind_of(value: object) -> str:
    """The type of a value with its article: "an int", "a Tensor", "None"."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"

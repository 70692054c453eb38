"""Plain tables for a terminal of 80 columns, the same in a pipe."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

WIDTH = 80
BOUNDLESS = 100_000
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], right: str, width: int = WIDTH
) -> list[str]:
    """Format a table. `right` has a character for each column: `>` aligns right, `<` left.

    If the table is wider than `width`, its widest text column is shortened.
    """
    table = [list(headings), *(list(row) for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(headings))]
    excess = sum(widths) + 2 * len(widths) - width
    if excess > 0:
        widest = max((at for at, side in enumerate(right) if side == "<"), key=lambda at: widths[at])
        widths[widest] = max(6, widths[widest] - excess)
    return [
        "".join(
            f"  {shortened(cell, room):{side}{room}}"
            for cell, room, side in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in table
    ]


def blocks(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Format a wide table: columns beyond `width` go into further blocks that repeat the first column."""
    cells = list(zip(headings, *rows, strict=True))
    widths = [2 + max(map(len, column)) for column in cells]
    lines: list[str] = []
    start = 1
    while start < len(cells):
        stop = start + 1
        while stop < len(cells) and widths[0] + sum(widths[start : stop + 1]) <= width:
            stop += 1
        shown = [cells[0], *cells[start:stop]]
        first, *rest = zip(*shown, strict=True)
        lines += columns(first, rest, "<" * len(shown), width)
        start = stop
    return lines


def fitting(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table for the width of this terminal; in a pipe each row is one line.

    Empty columns are left out. Without rows there are no lines.
    """
    if not rows:
        return []
    known = [at for at in range(len(headings)) if any(row[at] for row in rows)]
    return blocks([headings[at] for at in known], [[row[at] for at in known] for row in rows], own_width())


def own_width() -> int:
    """The width of the terminal; unlimited in a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else BOUNDLESS


def paragraph(words: str) -> list[str]:
    """Wrap text at 80 columns."""
    return textwrap.wrap(words, WIDTH, break_long_words=False, break_on_hyphens=False)


def wrapped(key: str, words: str) -> list[str]:
    """Format a key and its text, wrapped at 80 columns."""
    lines = textwrap.wrap(words, WIDTH - 15, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"  {key if not at else '':<11}  {line}" for at, line in enumerate(lines)]


def shortened(text: str, width: int) -> str:
    """Shorten `text` to `width` characters by leaving out its middle."""
    if len(text) <= width:
        return text
    kept = width - 1
    return text[: (kept + 1) // 2] + "…" + text[len(text) - kept // 2 :]


def bar(share: float, cells: int = 6) -> str:
    """A share between 0 and 1 as a bar and a percentage."""
    eighths = round(min(max(share, 0.0), 1.0) * cells * 8)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return f"{drawn:<{cells}} {share:4.0%}"

"""Plain tables for a terminal of 80 columns, the same in a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 80
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def columns(headings: Sequence[str], rows: Sequence[Sequence[str]], right: str) -> list[str]:
    """Lines of a table. `right` has a letter for each column: `>` aligns it right, `<` left.

    The widest column of text gives way where the table is wider than 80 columns.
    """
    table = [list(headings), *(list(row) for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(headings))]
    excess = sum(widths) + 2 * len(widths) - WIDTH
    if excess > 0:
        widest = max((at for at, side in enumerate(right) if side == "<"), key=lambda at: widths[at])
        widths[widest] = max(6, widths[widest] - excess)
    return [
        "".join(
            f"  {shortened(cell, width):{side}{width}}"
            for cell, width, side in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in table
    ]


def blocks(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a wide table: columns beyond 80 go into further blocks, each with the first column again."""
    cells = list(zip(headings, *rows, strict=True))
    widths = [2 + max(map(len, column)) for column in cells]
    lines: list[str] = []
    start = 1
    while start < len(cells):
        stop = start + 1
        while stop < len(cells) and widths[0] + sum(widths[start : stop + 1]) <= WIDTH:
            stop += 1
        shown = [cells[0], *cells[start:stop]]
        first, *rest = zip(*shown, strict=True)
        lines += columns(first, rest, "<" * len(shown))
        start = stop
    return lines


def paragraph(words: str) -> list[str]:
    """Words on lines of 80 columns."""
    return textwrap.wrap(words, WIDTH, break_long_words=False, break_on_hyphens=False)


def wrapped(key: str, words: str) -> list[str]:
    """A key and what it says, on as many lines as 80 columns ask for."""
    lines = textwrap.wrap(words, WIDTH - 15, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"  {key if not at else '':<11}  {line}" for at, line in enumerate(lines)]


def shortened(text: str, width: int) -> str:
    """`text` within `width` characters, its middle left out where it is longer."""
    if len(text) <= width:
        return text
    kept = width - 1
    return text[: (kept + 1) // 2] + "…" + text[len(text) - kept // 2 :]


def bar(share: float, cells: int = 6) -> str:
    """A share of 1 as a bar and in per cent."""
    eighths = round(min(max(share, 0.0), 1.0) * cells * 8)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return f"{drawn:<{cells}} {share:4.0%}"

"""Write what `benchmarks/model_table.py` measured between the marks of docs/reference/models.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.model_table import Row


def filled(page: str, parts: Mapping[str, str]) -> str:
    """The page with what stands between `<!-- made: NAME -->` and `<!-- end -->` replaced by each part.

    Raises
    ------
    ValueError
        The page has no such marks.
    """
    for name, text in parts.items():
        before, mark, rest = page.partition(f"<!-- made: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise ValueError(f"the page must have `<!-- made: {name} -->` and `<!-- end -->` below it")
        page = f"{before}{mark}{text}\n{end}{after}"
    return page


def notes(row: Row) -> list[str]:
    """What is said about a model beside its figures, one line each."""
    said = [f"* `{row.model}`: {row.notes}"] if row.notes else []
    return said + [f"* `{row.model}` on {backend}: {why}" for backend, why in row.refusals.items()]


def table(rows: Sequence[Row]) -> str:
    """A Markdown table, one row a model; a column for each backend that any row knows."""
    backends = list(dict.fromkeys(name for row in rows for name in row.differences))
    head = ["model", "size", "parameters", "nodes", "ops", "IR", "zlib", "cut a sample", "tolerance"]
    head += [f"worst gradient, {name}" for name in backends]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * 2 + " ---: |" * (len(head) - 2)]
    lines += ["| " + " | ".join(cells(row, backends)) + " |" for row in rows]
    return "\n".join(lines)


def cells(row: Row, backends: Sequence[str]) -> list[str]:
    """A row's figures as text."""
    found = [row.differences.get(name) for name in backends]
    return [
        f"`{row.model}`",
        row.size,
        amount(row.parameters),
        f"{row.nodes:,}",
        str(row.ops),
        amount(row.ir_bytes, "B"),
        amount(row.compressed_bytes, "B"),
        amount(row.cut_bytes, "B"),
        relative(row.tolerance),
        *("-" if difference is None else relative(difference) for difference in found),
    ]


def relative(difference: float) -> str:
    """0, or one digit and the power of ten."""
    return f"{difference:.0e}" if difference else "0"


def amount(count: int, unit: str = "") -> str:
    """A count in thousands, millions or billions, three digits."""
    for power, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= power:
            return f"{count / power:.3g} {name}{unit}"
    return f"{count} {unit}".rstrip()

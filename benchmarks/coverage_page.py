"""Write what `benchmarks/coverage.py` measured between the marks of docs/reference/coverage.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.model_page import filled

OUTCOMES = ("holds", "refused", "differs", "over", "not built")
Row = Mapping[str, Any]


def page_of(page: str, rows: Sequence[Row], known: int, versions: Mapping[str, str]) -> str:
    """The page with versions, counts and every failure."""
    parts = {
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items())
        + f"; {len(rows)} of {known} cases run.",
        "counts": counts(rows),
        "failures": failures([row for row in rows if row["outcome"] not in ("holds", "not built")]),
        "not built": failures([row for row in rows if row["outcome"] == "not built"]),
    }
    return filled(page, parts)


def counts(rows: Sequence[Row]) -> str:
    """One line for each library and task: how many there are of each outcome, and the share that holds."""
    head = ["library", "task", "cases", *OUTCOMES, "hold, of those built"]
    lines = ["| " + " | ".join(head) + " |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        library, task, _ = row["key"].split("/", 2)
        groups.setdefault((library, task), []).append(row)
        if library == "transformers":
            groups.setdefault((library, "all"), []).append(row)
    for (library, task), found in sorted(groups.items()):
        made = Counter(row["outcome"] for row in found)
        built = len(found) - made["not built"]
        share = f"{100 * made['holds'] / built:.0f} %" if built else "-"
        cells = [library, task, str(len(found)), *(str(made[outcome]) for outcome in OUTCOMES), share]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def failures(rows: Sequence[Row]) -> str:
    """A table of cases with their reasons."""
    lines = ["| case | outcome | reason |", "| --- | --- | --- |"]
    for row in sorted(rows, key=lambda row: str(row["key"])):
        reason = " ".join(str(row["reason"]).split()).replace("|", "\\|")
        lines.append(f"| `{row['key']}` | {row['outcome']} | {_without_paths(reason)[:240]} |")
    return "\n".join(lines)


def _without_paths(text: str) -> str:
    """The text with files named from their package on, since folders differ between machines."""
    return " ".join(_file(word) for word in text.split(" "))


def _file(word: str) -> str:
    for package in ("transformers/", "timm/", "torch/"):
        _, found, rest = word.rpartition(f"/{package}")
        if found:
            return ("(" if word.startswith("(") else "") + package + rest
    return word

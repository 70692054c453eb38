"""How many intervals of workers were drawn to be checked in a run, and what came of them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from farflung.client.output.history import read_rows
from farflung.text import count_of


class _Row(msgspec.Struct):
    event: str
    worker: str | None = None
    checker: str | None = None
    first: int = 0
    agrees: bool = False


class DrawnIntervals:
    """The newest word on each interval that was drawn, by its worker and its first unit.

    A checker that fails is one word, what the next one finds another. So is what is found in steps that the
    run has done again.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], str] = {}

    @classmethod
    def of_events(cls, path: Path) -> DrawnIntervals:
        """Those of the earlier parts of a run, from its `events.jsonl`."""
        drawn = cls()
        for row in read_rows(path, _Row):
            if row.event == "check":
                drawn.add(row.worker, row.first, row.checker, row.agrees)
        return drawn

    def add(self, worker: str | None, first: int, checker: str | None, agrees: bool) -> None:
        """Note what came of a check; remarks on checks in general have no worker, and do not count."""
        if worker is not None:
            self._found[worker, first] = "the same" if agrees else "other work" if checker else ""

    def words(self) -> str:
        """What came of all of them, in one line; empty if none was drawn."""
        found = list(self._found.values())
        same, other, unchecked = found.count("the same"), found.count("other work"), found.count("")
        if not found:
            return ""
        if same == len(found):
            intervals = count_of(same, "interval of a worker", "intervals of workers")
            return f"{intervals} ran again on others, which found the same"
        drawn = count_of(len(found), "drawn interval of a worker", "drawn intervals of workers")
        parts = [f"{same or 'none'} of {drawn} ran again on others, which found the same"]
        parts += [f"others found other work in {other}"] if other else []
        parts += [f"{unchecked} {'was' if unchecked == 1 else 'were'} not checked"] if unchecked else []
        return f"{', '.join(parts)} (see events.jsonl)"

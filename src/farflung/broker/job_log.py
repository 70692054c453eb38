"""What the broker's log said of each job, in bounded memory, since the broker was started."""

from __future__ import annotations

from collections import deque

import msgspec

MOST_LINES = 200
"""Of one job: the newest."""
MOST_JOBS = 200


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """One line: Unix seconds, and what happened."""

    at: float
    words: str


class JobLog:
    """The lines of the newest jobs."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[LogLine]] = {}

    def add(self, fact: object, at: float, words: str) -> None:
        """Keep a line, if the fact is about a job."""
        job = getattr(fact, "job", None)
        if not isinstance(job, str):
            return
        lines = self._lines.pop(job, None) or deque(maxlen=MOST_LINES)
        lines.append(LogLine(at, words))
        self._lines[job] = lines
        while len(self._lines) > MOST_JOBS:
            del self._lines[next(iter(self._lines))]

    def of(self, job: str) -> list[LogLine]:
        """The lines of a job, the oldest first."""
        return list(self._lines.get(job, ()))

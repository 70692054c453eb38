"""How much longer something will take, from how far it came: nothing is said before that is known."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

LEAST_REPORTS = 4
LEAST_SECONDS = 1.0
RECENT_SECONDS = 60.0
_KEPT = 400

_Span = tuple[float, float, float, float]
"""When the first and the last report that count came, each followed by how much was done."""


class Remaining:
    """Is told how much is done, and says when the rest will be at that pace.

    The pace is a mean over the last minute, or the later half of all the time if that is longer: one slow
    step, or an evaluation between two, moves it little, and a line that became slower shows all the same.
    What is reported first begins the count, so whatever came before it (a first step, which compiles and
    warms up) counts for nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: deque[tuple[float, float]] = deque()
        self._began = 0.0
        self._span: _Span | None = None  # replaced as a whole: a terminal is drawn by another thread

    def came(self, done: float) -> None:
        """So much is done; less than before is a new beginning."""
        now = self._clock()
        if not self._reports or done < self._reports[-1][1]:
            self._reports.clear()
            self._began = now
        recent = max(RECENT_SECONDS, (now - self._began) / 2)
        if (
            len(self._reports) > LEAST_REPORTS
            and self._reports[-1][0] - self._reports[-2][0] < recent / _KEPT
        ):
            self._reports.pop()
        self._reports.append((now, done))
        while len(self._reports) > LEAST_REPORTS and self._reports[1][0] <= now - recent:
            self._reports.popleft()
        first, last = self._reports[0], self._reports[-1]
        is_known = len(self._reports) >= LEAST_REPORTS and last[0] - first[0] >= LEAST_SECONDS
        self._span = (*first, *last) if is_known and last[1] > first[1] else None

    def seconds(self, total: float) -> float | None:
        """How long until `total` is done; None as long as too little was seen to say it."""
        if (span := self._span) is None:
            return None
        first_at, first, last_at, last = span
        left = (total - last) * (last_at - first_at) / (last - first)
        return max(0.0, left - (self._clock() - last_at))

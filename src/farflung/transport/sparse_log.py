"""Lines of a log that strangers can cause: so many in a while, and then only how many more there were."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

BURST = 20
PERIOD_SECONDS = 10.0


class SparseLog:
    """Passes on to `log` at most `BURST` lines in each `PERIOD_SECONDS`, and says how many it left out."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._began = clock()
        self._said = self._left_out = 0

    def write(self, level: int, text: str, *given: object) -> None:
        """Log a line like `Logger.log`, unless there were too many just now."""
        now = self._clock()
        if now - self._began >= PERIOD_SECONDS:
            self._began, self._said, left_out = now, 0, self._left_out
            self._left_out = 0
            if left_out:
                self._log.warning("%d more lines about refused connections were left out", left_out)
        if self._said >= BURST:
            self._left_out += 1
            return
        self._said += 1
        self._log.log(level, text, *given)

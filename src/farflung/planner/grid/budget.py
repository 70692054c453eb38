"""What a search may spend: evaluations, which make it reproducible, and seconds only as a cap."""

from __future__ import annotations

import time


class Budget:
    """Counts evaluations; `capped` says that a search was stopped by the clock, so that it may not repeat."""

    def __init__(self, evaluations: int, most_seconds: float) -> None:
        self.spent = 0
        self.capped = False
        self._evaluations = evaluations
        self._deadline = time.monotonic() + most_seconds

    @property
    def left(self) -> int:
        """Evaluations that may still be spent: none once the clock has run out."""
        if self.spent < self._evaluations and time.monotonic() > self._deadline:
            self.capped = True
        return 0 if self.capped else max(0, self._evaluations - self.spent)

    def spend(self, evaluations: int = 1) -> None:
        self.spent += evaluations

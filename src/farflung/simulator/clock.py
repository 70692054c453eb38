"""Simulated time: what is due runs in the order of its time, then in the order in which it was asked for."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[[Any], None]


class Clock:
    """`now` is in seconds; nothing here waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Action, Any]] = []
        self._asked = 0
        self._is_stopped = False

    def at(self, seconds: float, action: Action, argument: Any = None) -> None:
        """Run `action(argument)` at a time that is not past."""
        self._asked += 1
        heapq.heappush(self._due, (seconds, self._asked, action, argument))

    def stop(self) -> None:
        """End `run` after what runs now."""
        self._is_stopped = True

    def run(self) -> None:
        """Run what is due until somebody says `stop`, or nothing is left."""
        due, pop = self._due, heapq.heappop
        self._is_stopped = False
        while due and not self._is_stopped:
            self.now, _, action, argument = pop(due)
            action(argument)

"""Simulated time: actions run in the order of their times, and at equal times in the order of scheduling."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[[Any], None]


class Clock:
    """A queue of actions in simulated time; `now` is in seconds, and nothing waits in real time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Action, Any]] = []
        self._count = 0
        self._is_stopped = False

    def at(self, seconds: float, action: Action, argument: Any = None) -> None:
        """Run `action(argument)` at a time that is not before `now`."""
        self._count += 1
        heapq.heappush(self._due, (seconds, self._count, action, argument))

    def stop(self) -> None:
        """End `run` after the current action."""
        self._is_stopped = True

    def run(self) -> None:
        """Run actions until one calls `stop` or none is left."""
        due, pop = self._due, heapq.heappop
        self._is_stopped = False
        while due and not self._is_stopped:
            self.now, _, action, argument = pop(due)
            action(argument)

"""How long the tasks of a unit compute, so that the broker sees a device that is slower than planned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class TaskTimer(Protocol):
    """Measures how long tasks compute, from one `take` to the next."""

    def task(self) -> AbstractContextManager[None]:
        """A task runs inside."""

    def aside(self) -> AbstractContextManager[None]:
        """What runs inside, within a task, does not count."""

    def take(self) -> float:
        """Seconds of the tasks that have ended, at least 0; the host does not wait for others."""

    def periods(self) -> list[tuple[float, float]]:
        """When the tasks that the last `take` counted began and ended, in seconds of `time.perf_counter`.

        Call it right after `take`; the host waits for the device.
        """

    def reset(self) -> None:
        """Forget the tasks so far."""


class HostTimer:
    """A `TaskTimer` by the host's clock, for devices whose work is done when a task returns."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._running: list[tuple[float, float]] = []
        self._taken: list[tuple[float, float]] = []

    @contextmanager
    def task(self) -> Iterator[None]:
        """See `TaskTimer`; a task that raises does not count."""
        began = time.perf_counter()
        yield
        ended = time.perf_counter()
        self._seconds += ended - began
        self._running.append((began, ended))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """See `TaskTimer`."""
        began = time.perf_counter()
        yield
        self._seconds -= time.perf_counter() - began

    def take(self) -> float:
        """See `TaskTimer`."""
        seconds, self._seconds = max(0.0, self._seconds), 0.0
        self._taken, self._running = self._running, []
        return seconds

    def periods(self) -> list[tuple[float, float]]:
        """See `TaskTimer`."""
        return self._taken

    def reset(self) -> None:
        """See `TaskTimer`."""
        self._seconds = 0.0
        self._running = []

"""The end of what runs in namespaces: it is asked to end, and what stays is ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from farflung.lab.tun import NAMESPACES
from farflung.transport.timeouts import Timeouts

LOOK_SECONDS = 0.02


class Leaving:
    """SIGTERM to every process in the namespaces, once; SIGKILL to those that are there after a while.

    It neither waits nor sleeps: whoever has it looks now and then until all `are_gone`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        found = [(NAMESPACES / name).stat() for name in names if (NAMESPACES / name).exists()]
        self._rooms = {(status.st_dev, status.st_ino) for status in found}
        self._deadline = time.monotonic() + Timeouts().stop_seconds
        self._asked: set[int] = set()  # a second SIGTERM would end them in the middle of tidying up

    def are_gone(self) -> bool:
        """Ask whoever is new to end, end whoever is late; whether nobody was there."""
        running = self._running()
        late = time.monotonic() > self._deadline
        for process in running:
            if late or process not in self._asked:
                self._asked.add(process)
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL if late else signal.SIGTERM)
        return not running

    def _running(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir() if self._rooms else ():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    status = (entry / "ns/net").stat()
                    if (status.st_dev, status.st_ino) in self._rooms:
                        found.append(int(entry.name))
        return found

"""Reads a file of rows while it is written, and notes when each row came."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

LOOK_SECONDS = 0.005
EVALUATION = b'"validation_loss"'
"""What a row of `metrics.jsonl` has that is about an evaluation rather than a step."""

LONGEST_SECONDS = 120.0
"""No wait of this program lasts longer."""


class Follower(threading.Thread):
    """The whole lines of a file so far, each with the `time.monotonic()` at which it was seen.

    Lines with `besides` in them are left out. It looks every `LOOK_SECONDS`; the file may come later. The
    thread ends with `stop()`.
    """

    def __init__(self, path: Path, besides: bytes | None = None) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._besides = besides
        self._stopped = threading.Event()
        self.lines: list[tuple[float, bytes]] = []
        self.start()

    def run(self) -> None:
        offset = 0
        while not self._stopped.wait(LOOK_SECONDS):
            if not self._path.exists() or self._path.stat().st_size <= offset:
                continue
            with self._path.open("rb") as file:
                file.seek(offset)
                new, end, _ = file.read().rpartition(b"\n")
            offset += len(new) + len(end)
            now = time.monotonic()
            self.lines += [(now, line) for line in new.splitlines() if not self._is_left_out(line)]

    def _is_left_out(self, line: bytes) -> bool:
        return self._besides is not None and self._besides in line

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self.join()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = LONGEST_SECONDS) -> None:
    """Wait until the condition holds.

    Raises
    ------
    SystemExit
        It did not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"recovery.py: never within {seconds:g} s: {what}")
        time.sleep(LOOK_SECONDS)

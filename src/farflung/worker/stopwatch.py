"""What the compute thread is at, written by it and read by the event loop, and how long its passes take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from farflung.worker.overrun import Doing, Kind, Passes


class Stopwatch:
    """`doing` is replaced as a whole: another thread that looks at it sees one thing or the next."""

    def __init__(self) -> None:
        self.doing: Doing | None = None

    @contextmanager
    def during(self, doing: Doing) -> Iterator[None]:
        """Say that the thread is at `doing` for as long as the block runs."""
        before, self.doing = self.doing, doing
        try:
            yield
        finally:
            self.doing = before

    @contextmanager
    def passing(self, passes: Passes, kind: Kind, microbatch: int) -> Iterator[None]:
        """Time a pass of a microbatch."""
        with self.during(passes.doing(kind, microbatch)):
            began = time.perf_counter()
            yield
            passes.took(kind, time.perf_counter() - began)

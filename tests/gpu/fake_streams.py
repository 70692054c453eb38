"""Streams and events of the accelerator that is not there, which copy as late as they may.

Ops run at once on the CPU. A copy that need not wait (`non_blocking`) is put off until something waits for
it: an event that was recorded after it, or an op on its stream. So a missing wait reads old bytes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.gpu.race_detector import COMPUTE, Detector

_NUMBERS = itertools.count(1)
_LOCK = threading.RLock()


class Watched:
    """The detector of this process."""

    detector = Detector()


class Stream:
    """What is queued, in order; `done` of `queued` pieces of it have run."""

    def __init__(self, device: object = None, number: int | None = None) -> None:
        self.number = next(_NUMBERS) if number is None else number
        self._queue: list[Callable[[], None]] = []
        self.done = 0

    @property
    def queued(self) -> int:
        return len(self._queue)

    def put_off(self, work: Callable[[], None]) -> None:
        """Queue work, which the stream of computation does at once."""
        with _LOCK:
            self._queue.append(work)
            if self.number == COMPUTE:
                self.run_to(self.queued)

    def run_to(self, position: int) -> None:
        """Do what was queued up to a position."""
        with _LOCK:
            while self.done < position:
                work, self._queue[self.done] = self._queue[self.done], _nothing
                self.done += 1
                work()

    def run_all(self) -> None:
        self.run_to(self.queued)

    def wait_event(self, event: Event) -> None:
        Watched.detector.waits(self.number, event.number)
        self.put_off(event.come)

    def synchronize(self) -> None:
        self.run_all()
        Watched.detector.drained(self.number)


def _nothing() -> None:
    """Work that is done."""


class Event:
    """A place in a stream's queue."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.number = next(_NUMBERS)
        self._at = 0.0 if enable_timing else None
        self._stream: Stream | None = None
        self._position = 0

    def record(self, stream: Stream) -> None:
        self._stream, self._position = stream, stream.queued
        if self._at is not None:
            self._at = time.perf_counter()
        Watched.detector.recorded(self.number, stream.number)

    def come(self) -> None:
        """Do what comes before the event."""
        if self._stream is not None:
            self._stream.run_to(self._position)

    def query(self) -> bool:
        """Whether it has passed: only if something has waited for it, or for what comes after."""
        passed = self._stream is None or self._stream.done >= self._position
        if passed:
            Watched.detector.synchronized(self.number)
        return passed

    def synchronize(self) -> None:
        self.come()
        Watched.detector.synchronized(self.number)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds to another event; both must have passed, as on a real device."""
        assert self._at is not None and end._at is not None, "an event without timing"
        assert self.query() and end.query(), "an event that has not passed"
        return (end._at - self._at) * 1e3


DEFAULT = Stream(number=COMPUTE)
_current = threading.local()


def current_stream(device: object = None) -> Stream:
    found: Stream = getattr(_current, "stream", DEFAULT)
    return found


@contextmanager
def stream(chosen: Stream) -> Iterator[None]:
    """Make a stream this thread's current one inside."""
    before = current_stream()
    _current.stream = chosen
    try:
        yield
    finally:
        _current.stream = before

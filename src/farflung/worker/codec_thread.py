"""The codec thread: what leaves is written and what comes is read while the compute thread computes.

NumPy and zstandard let go of Python's lock. One thread does all of it, in the order in which it is posted:
what codecs remember depends on that order, and so do the bytes of a step that is run again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from farflung.plans import LinkCodec
from farflung.runtime.backend import LinkCoding
from farflung.runtime.parcel import Coded, Parcel, Sent
from farflung.schedule import MOST_WAITING

Allocate = Callable[[int], memoryview]


class CodecThread(threading.Thread):
    """Makes one call after the other."""

    def __init__(self) -> None:
        super().__init__(name="farflung-codec", daemon=True)
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def post(self, call: Callable[[], None]) -> None:
        """Make it when all earlier ones are done."""
        self._calls.put(call)

    def close(self) -> None:
        """End the thread after what was posted until now."""
        self._calls.put(None)

    def run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class CodedLinks:
    """What an attempt sends and gets through the codec thread; a job without codecs has `PlainLinks`.

    Parameters
    ----------
    post
        Where calls are made: `CodecThread.post`.
    read, written
        Take what was read, and what is to be sent.
    fail
        Takes the error that ends the attempt; nothing is called after it.
    """

    def __init__(
        self,
        coding: LinkCoding,
        post: Callable[[Callable[[], None]], None],
        allocate: Allocate,
        read: Callable[[Parcel[memoryview]], None],
        written: Callable[[Parcel[Coded]], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._coding = coding
        self._post_call = post
        self._allocate = allocate
        self._read, self._written, self._fail = read, written, fail
        self._early: list[Parcel[Coded]] = []
        self._room = threading.Semaphore(MOST_WAITING)
        self._is_closed = False

    def read(self, parcel: Parcel[Coded]) -> None:
        """It has come over a link. Any thread may say so."""
        self._post(lambda: self._decode(parcel))

    def write(self, parcel: Parcel[memoryview]) -> None:
        """It leaves for another worker; its memory stays as it is. Waits while many are being written."""
        self._room.acquire()
        self._post_call(lambda: self._encode(parcel))

    def finish(self, tell: Callable[[tuple[Sent, ...]], None]) -> None:
        """Everything of a unit has been given to `write`: `tell` what was written, once it is."""
        self._post(lambda: tell(tuple(self._coding.take_sent())))

    def decided(self, unit: int, codecs: Sequence[LinkCodec] | None) -> None:
        """A unit is applied; with `codecs` links are written so from the next one on."""
        self._post(lambda: self._decided(unit, codecs))

    def close(self) -> None:
        """Forget what is left to do."""
        self._is_closed = True

    def _post(self, call: Callable[[], None]) -> None:
        self._post_call(lambda: self._guarded(call))

    def _guarded(self, call: Callable[[], None]) -> None:
        if self._is_closed:
            return
        try:
            call()
        except Exception as error:
            self._is_closed = True
            self._fail(error)

    def _encode(self, parcel: Parcel[memoryview]) -> None:
        try:
            self._guarded(lambda: self._written(self._coding.encode(parcel)))
        finally:
            self._room.release()

    def _decode(self, parcel: Parcel[Coded]) -> None:
        if self._coding.is_early(parcel):
            self._early.append(parcel)
        else:
            self._read(self._coding.decode(parcel, self._allocate))

    def _decided(self, unit: int, codecs: Sequence[LinkCodec] | None) -> None:
        self._coding.decided(unit, applied=True)
        if codecs is not None:
            self._coding.set(codecs)
        early, self._early = self._early, []
        for parcel in early:
            self._decode(parcel)

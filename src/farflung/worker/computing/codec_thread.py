"""The codec thread encodes what is sent and decodes what is received while the compute thread computes.

NumPy and zstandard release the GIL. A single thread makes all calls in the order in which they are posted,
because the state of codecs, and with it the exact bytes of a repeated step, depends on that order.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from farflung.errors import CodecError
from farflung.plans import LinkCodec, Plan
from farflung.runtime.backend import LinkCoding
from farflung.runtime.link_book import AnyParcel, EdgeKey, edge_key
from farflung.runtime.parcel import Coded, Parcel, Sent
from farflung.schedule import MOST_WAITING

Allocate = Callable[[int], memoryview]
_Place = tuple[int, int, EdgeKey]  # unit, microbatch


class CodecThread(threading.Thread):
    """Makes posted calls, one at a time."""

    def __init__(self) -> None:
        super().__init__(name="farflung-codec", daemon=True)
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def post(self, call: Callable[[], None]) -> None:
        """Queue a call, to be made when all earlier ones are done."""
        self._calls.put(call)

    def close(self) -> None:
        """End the thread after all calls that were posted so far."""
        self._calls.put(None)

    def run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # it may hold a job, whose memory is to be freed


class CodedLinks:
    """Encodes and decodes the messages of one attempt on the codec thread; see `PlainLinks` for no codecs.

    Parameters
    ----------
    post
        Queues a call for the codec thread: `CodecThread.post`.
    read, written
        Called with each decoded parcel, and with each encoded one, which is to be sent.
    fail
        Called with the error that ends the attempt; no other callback is called after it.
    live_from
        The first unit that is not run again (`Load.history`). In those before, the gradient of a value may
        come before that value is written; it is read only afterwards, because a codec may need to know what
        it wrote.
    """

    def __init__(
        self,
        coding: LinkCoding,
        post: Callable[[Callable[[], None]], None],
        allocate: Allocate,
        read: Callable[[Parcel[Any]], None],
        written: Callable[[Parcel[Coded]], None],
        fail: Callable[[Exception], None],
        live_from: int = 0,
    ) -> None:
        self._live_from = live_from
        self._again: set[_Place] = set()
        self._held: dict[_Place, list[Parcel[Coded]]] = {}
        self._coding = coding
        self._post_call = post
        self._allocate = allocate
        self._read, self._written, self._fail = read, written, fail
        self._early: list[Parcel[Coded]] = []
        self._room = threading.Semaphore(MOST_WAITING)
        self._is_closed = False

    def read(self, parcel: Parcel[Coded]) -> None:
        """Decode a parcel that was received; may be called on any thread."""
        self._post(lambda: self._decode(parcel))

    def write(self, parcel: Parcel[Any]) -> None:
        """Encode a parcel for another worker; blocks while many are queued. Its memory must not change."""
        self._room.acquire()
        self._post_call(lambda: self._encode(parcel))

    def finish(self, report: Callable[[tuple[Sent, ...]], None]) -> None:
        """Call `report` with what was sent in a unit, once all parcels passed to `write` are encoded."""
        self._post(lambda: report(tuple(self._coding.take_sent())))

    def decided(self, unit: int, codecs: Sequence[LinkCodec] | None) -> None:
        """End a unit; `codecs`, if given, are the links' codec pairs from the next one on."""
        self._post(lambda: self._decided(unit, codecs))

    def restart(self) -> None:
        """Forget parcels that wait, and what the current unit taught the codecs: it runs again.

        Returns once the codec thread has done so: no parcel that was written or read before comes out later.
        """
        done = threading.Event()
        self._post(self._restart)
        self._post_call(done.set)
        done.wait()
        if self._is_closed:
            raise CodecError("a codec failed while a step was dropped")

    def rename(self, plan: Plan, anew: Collection[int] = ()) -> None:
        """Use the workers of `plan`, which has the same segments; `anew` as in `LinkCoding.rename`."""
        self._post(lambda: self._coding.rename(plan, anew))

    def snapshot(self, taken: Callable[[bytes], None]) -> None:
        """Call `taken` with the coders' state as of the last decided unit."""
        self._post(lambda: taken(self._coding.snapshot()))

    def restore(self, snapshot: bytes) -> None:
        """Go on from this state of the coders."""
        self._post(lambda: self._coding.restore(snapshot))

    def close(self) -> None:
        """Drop all queued work."""
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

    def _encode(self, parcel: Parcel[Any]) -> None:
        try:
            self._guarded(lambda: self._write(parcel))
        finally:
            self._room.release()

    def _write(self, parcel: Parcel[Any]) -> None:
        coded = self._coding.encode(parcel)
        if parcel.target == parcel.source:  # its owner goes on with the sum that others read
            self._decode(coded)
            return
        self._written(coded)
        if parcel.unit < self._live_from and not parcel.gradient:
            self._again.add(_place(parcel))
            for held in self._held.pop(_place(parcel), ()):
                self._decode(held)

    def _decode(self, parcel: Parcel[Coded]) -> None:
        is_past = parcel.gradient and parcel.unit < self._live_from
        if is_past and _place(parcel) not in self._again:
            self._held.setdefault(_place(parcel), []).append(parcel)
        elif self._coding.is_early(parcel):
            self._early.append(parcel)
        else:
            self._read(self._coding.decode(parcel, self._allocate))

    def _restart(self) -> None:
        self._coding.restart()
        self._early.clear()

    def _decided(self, unit: int, codecs: Sequence[LinkCodec] | None) -> None:
        self._coding.decided(unit)
        self._again.clear()
        if codecs is not None:
            self._coding.set(codecs)
        early, self._early = self._early, []
        for parcel in early:
            self._decode(parcel)


def _place(parcel: AnyParcel) -> _Place:
    return parcel.unit, parcel.microbatch, edge_key(parcel)

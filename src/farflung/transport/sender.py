"""The sending half of a link: writes what is due whenever the transport takes more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from farflung.errors import ProtocolError
from farflung.transport.connection import Connection
from farflung.transport.frames import Cancel, Credit, Frame, Ping, Pong, Taken, encode
from farflung.transport.headers import DataHeader, Receipt
from farflung.transport.outbox import WINDOW_BYTES, Done, Outbox
from farflung.transport.pace import Pace
from farflung.transport.timeouts import CREDIT_SECONDS

_CREDIT_BYTES = WINDOW_BYTES // 8


class Sender:
    """Housekeeping frames are kept as facts, not as a queue: however long a peer does not read, there is at
    most one ping, one pong and one credit to be written.
    """

    def __init__(self, connection: Connection) -> None:
        self.pace = Pace()
        self.bytes_sent = 0
        self.messages_sent = 0
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox()
        self._leaving: list[Done] = []
        self._is_scheduled = False
        self._is_over = False
        self._unsent_bytes = 0
        self._owed = 0
        self._credited_at = 0.0
        self._ping: float | None = None
        self._pong: float | None = None
        self._cancelled: list[int] = []
        self._receipt: Receipt | None = None

    def write_now(self, frame: Frame) -> None:
        """Write a frame before all others: a hello or the reason for closing."""
        data = encode(frame)
        self.bytes_sent += len(data)
        self._connection.write(data)

    def post_control(self, message: bytes, taken: Done | None) -> None:
        """Queue a control message."""
        self._outbox.post_control(memoryview(message), taken)
        self._schedule()

    def post(self, header: DataHeader, payload: memoryview, done: Done | None, taken: Done | None) -> None:
        """Queue a data message; `done` is called once, when it has left or never will."""
        self._outbox.post(header, payload, done, taken)
        self._schedule()

    def withdraw(self, matches: Callable[[DataHeader], bool]) -> None:
        """Drop the data messages that match; the peer is told of those that have begun."""
        self._cancelled += self._outbox.withdraw(matches)
        self._schedule()

    def ping(self, stamp: float) -> None:
        """Ask for a sign of life."""
        self._ping = stamp
        self._schedule()

    def pong(self, stamp: float) -> None:
        """Give one."""
        self._pong = stamp
        self._schedule()

    def owe(self, size: int) -> None:
        """The peer's data is being taken, so it gets credit; ProtocolError if it sends more than it has."""
        self._owed += size
        if self._owed > WINDOW_BYTES:
            raise ProtocolError(f"expected at most {WINDOW_BYTES} bytes without credit, found {self._owed}")
        if self._owed >= _CREDIT_BYTES or time.monotonic() - self._credited_at >= CREDIT_SECONDS:
            self._schedule()

    def credit(self, count: int) -> None:
        """The peer has taken `count` bytes; ProtocolError if they were never sent."""
        self._outbox.credit(count)
        self.pace.taken(count, time.monotonic())
        self._schedule()

    def receipt(self, receipt: Receipt) -> None:
        """Something has come whole: the peer is told with whatever is written next."""
        self._receipt = receipt

    def took(self, receipt: Receipt) -> None:
        """The peer says what has come whole; ProtocolError if some of it was never sent."""
        self._outbox.took(receipt)

    def drained(self) -> None:
        """The connection takes more."""
        self.let_go()
        self._pump()

    def stop(self) -> None:
        """Write nothing more; what is on its way may still leave."""
        self._is_over = True
        self._outbox.clear()

    def let_go(self) -> None:
        """What was on its way has left, or never will."""
        leaving, self._leaving = self._leaving, []
        for done in leaving:
            done()

    def _schedule(self) -> None:
        # One write for all that is posted in one turn of the loop.
        if not self._is_scheduled and not self._connection.is_writing and not self._is_over:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        if self._connection.is_writing or self._is_over:
            return
        if not len(self._outbox):
            self.pace.idle()
        urgent = self._urgent()
        self._limit_unsent(self.pace.unsent_bytes)
        batch = self._outbox.batch(self.pace.chunk_bytes)
        if not urgent and not batch.buffers:
            return
        self.bytes_sent += sum(map(len, urgent)) + batch.size
        self.messages_sent += len(batch.done)
        if batch.data_bytes:
            self.pace.sent(time.monotonic())
        self._leaving += batch.done
        self._connection.write(*urgent, *batch.buffers)

    def _limit_unsent(self, count: int) -> None:
        # Set anew when the rate has doubled or halved. A small limit would wake a fast link so often that it
        # loses a tenth of its rate (benchmarks/transport.py).
        if not self._unsent_bytes / 2 < count < self._unsent_bytes * 2:
            self._connection.limit_unsent(count)
            self._unsent_bytes = count

    def _urgent(self) -> list[bytes]:
        frames: list[Frame] = [Cancel(stream) for stream in self._cancelled]
        if self._owed:
            frames.append(Credit(self._owed))
            self._credited_at = time.monotonic()
        if self._ping is not None:
            frames.append(Ping(self._ping))
        if self._pong is not None:
            frames.append(Pong(self._pong))
        if self._receipt is not None:
            frames.append(Taken(self._receipt))
            self._receipt = None
        self._cancelled, self._owed, self._ping, self._pong = [], 0, None, None
        return [encode(frame) for frame in frames]

"""What a link has still to send: messages by priority, cut into chunks, within the receiver's credit."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from farflung.errors import ProtocolError
from farflung.transport.wire.frames import Cancel, Chunk, Control, Open, encode
from farflung.transport.wire.headers import MAXIMUM_STREAMS, DataHeader, Receipt, ValueHeader

WINDOW_BYTES = 16 * 2**20
"""Payload of data that may be on its way before the receiver has said that it took any."""

_CONTROL, _GRADIENT, _ACTIVATION, _STATE = range(4)

Buffers = list[bytes | memoryview]
Done = Callable[[], None]
CutOff = Callable[[int], None]


def _nothing() -> None:
    """For messages whose end nobody waits for."""


@dataclass(order=True, slots=True)
class _Message:
    priority: int
    sequence: int
    header: DataHeader | None = field(compare=False)
    payload: memoryview = field(compare=False)
    done: Done = field(compare=False)
    taken: Done | None = field(default=None, compare=False)
    cut_off: CutOff | None = field(default=None, compare=False)
    stream: int | None = field(default=None, compare=False)
    sent: int = field(default=0, compare=False)
    leaving: int = field(default=0, compare=False)

    @property
    def is_through(self) -> bool:
        return self.sent == len(self.payload)


@dataclass
class Batch:
    """Bytes to write now over one connection, and how many of them are data.

    Attributes
    ----------
    messages : How many messages these bytes are the last of.
    """

    buffers: Buffers = field(default_factory=list)
    pieces: list[_Message] = field(default_factory=list)
    size: int = 0
    data_bytes: int = 0
    messages: int = 0

    def left(self) -> None:
        """These bytes have left, or never will: tell of the messages of which nothing is left to write."""
        pieces, self.pieces = self.pieces, []
        for message in pieces:
            message.leaving -= 1
        for message in pieces:
            if message.is_through and not message.leaving:
                done, message.done = message.done, _nothing
                done()


class Outbox:
    """Control first, then gradients, activations and state, each in the order of their coming.

    Attributes
    ----------
    is_striped : Whether data leaves over several connections, so that it may arrive in another order.
    """

    def __init__(self) -> None:
        self.is_striped = False
        self._control: deque[_Message] = deque()
        self._queue: list[_Message] = []
        self._sequence = 0
        self._next_stream = 0
        self._credit = WINDOW_BYTES
        self._controls: deque[Done] = deque()
        self._controls_taken = 0
        self._begun: dict[int, _Message] = {}
        self._unfinished: set[int] = set()

    def __len__(self) -> int:
        """How many messages have not been given out whole."""
        return len(self._control) + len(self._queue)

    def post_control(self, payload: memoryview, taken: Done | None = None) -> None:
        """Queue a control message; `taken` is called when the receiver says that it has come whole."""
        self._controls.append(taken or _nothing)
        self._control.append(_Message(_CONTROL, 0, None, payload, _nothing))

    def post(
        self,
        header: DataHeader,
        payload: memoryview,
        done: Done | None,
        taken: Done | None = None,
        cut_off: CutOff | None = None,
        start: int = 0,
    ) -> None:
        """Queue a data message; `payload` stays unchanged until `done` has been called, exactly once.

        `taken` is called at most once: when the receiver says that the message has come whole. `cut_off` is
        called if it says, once the link is lost, how many of the first bytes it keeps. It has those before
        `start`.
        """
        if isinstance(header, ValueHeader):
            priority = _GRADIENT if header.gradient else _ACTIVATION
        else:
            priority = _STATE
        message = _Message(
            priority, self._sequence, header, payload, done or _nothing, taken, cut_off, sent=start
        )
        heapq.heappush(self._queue, message)
        self._sequence += 1

    def credit(self, count: int) -> None:
        """The receiver took `count` bytes; ProtocolError if they were never sent."""
        if self._credit + count > WINDOW_BYTES:
            raise ProtocolError(
                f"expected credit for at most {WINDOW_BYTES - self._credit} bytes, found {count}"
            )
        self._credit += count

    def took(self, receipt: Receipt) -> None:
        """The receiver says what has come whole.

        Raises
        ------
        ProtocolError
            Some of it was never sent.
        """
        fresh = receipt.controls - self._controls_taken
        if fresh > len(self._controls) or receipt.opened > self._next_stream:
            raise ProtocolError("expected a receipt for what was sent, found one for more")
        taken = [self._controls.popleft() for _ in range(fresh)]
        self._controls_taken += len(taken)
        whole = [self._begun.pop(stream) for stream in list(self._begun) if receipt.holds(stream)]
        taken += [message.taken or _nothing for message in whole]
        self._unfinished = {stream for stream in self._unfinished if not receipt.holds(stream)}
        for say in taken:
            say()

    def concluded(self, receipt: Receipt) -> None:
        """The link is lost: the receiver says over another one what has come, and what it keeps of the rest.

        Raises
        ------
        ProtocolError
            Some of it was never sent.
        """
        self.took(receipt)
        parts = dict(receipt.parts)
        for stream, message in self._begun.items():
            if (size := parts.get(stream, 0)) > message.sent:
                raise ProtocolError(f"expected a receipt for {message.sent} bytes, found one for {size}")
            if message.cut_off is not None and stream < receipt.opened:
                message.cut_off(size)

    def withdraw(self, matches: Callable[[DataHeader], bool]) -> list[Cancel]:
        """Drop the data messages that match; gives back what the receiver is to be told."""
        kept: list[_Message] = []
        dropped: list[_Message] = []
        for message in self._queue:
            gone = message.header is not None and matches(message.header)
            (dropped if gone else kept).append(message)
        heapq.heapify(kept)
        self._queue = kept
        for message in dropped:
            if message.stream is not None:
                self._begun.pop(message.stream, None)
            message.done()
        return [Cancel(message.stream, message.sent) for message in dropped if message.stream is not None]

    def clear(self) -> None:
        """Drop everything; nothing leaves any more."""
        dropped, self._queue = self._queue, []
        self._control.clear()
        for message in dropped:
            message.done()

    def batch(self, chunk_bytes: int, takes_control: bool = True) -> Batch:
        """The next chunks, in order, until they make up a whole one or the credit is used up."""
        batch = Batch()
        while takes_control and self._control and batch.size < chunk_bytes:
            message = self._control[0]
            self._cut(message, chunk_bytes, batch)
            if message.is_through:
                self._control.popleft()
        while self._queue and batch.size < chunk_bytes:
            message = self._queue[0]
            size = min(chunk_bytes, len(message.payload) - message.sent)
            if size > self._credit or (message.stream is None and self._must_wait):
                break
            self._credit -= size
            batch.data_bytes += size
            self._cut(message, chunk_bytes, batch)
            if message.is_through:
                heapq.heappop(self._queue)
        return batch

    @property
    def _must_wait(self) -> bool:
        return self.is_striped and len(self._unfinished) >= MAXIMUM_STREAMS

    def _cut(self, message: _Message, chunk_bytes: int, batch: Batch) -> None:
        size = min(chunk_bytes, len(message.payload) - message.sent)
        head = encode(self._frame(message), size)
        batch.buffers.append(head)
        if size:
            batch.buffers.append(message.payload[message.sent : message.sent + size])
        message.sent += size
        message.leaving += 1
        batch.pieces.append(message)
        batch.size += len(head) + size
        batch.messages += message.is_through

    def _frame(self, message: _Message) -> Control | Open | Chunk:
        if message.header is None:
            return Control(message.sent, len(message.payload))
        if message.stream is not None:
            return Chunk(message.stream, message.sent)
        message.stream = self._next_stream
        self._next_stream += 1
        self._unfinished.add(message.stream)
        if message.taken is not None:
            self._begun[message.stream] = message
        controls = self._controls_taken + len(self._controls)
        return Open(message.stream, message.header, controls, message.sent)

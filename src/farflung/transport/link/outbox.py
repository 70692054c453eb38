"""The send queue of a link: messages by priority, cut into chunks, within the receiver's credit."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from farflung.errors import ProtocolError
from farflung.transport.wire.frames import Cancel, Chunk, Control, Open, encode
from farflung.transport.wire.headers import MAXIMUM_STREAMS, DataHeader, Receipt, ValueHeader

WINDOW_BYTES = 16 * 2**20
"""Payload bytes of data that may be in flight before the receiver confirms that it has read them."""

_CONTROL, _GRADIENT, _ACTIVATION, _STATE = range(4)

Buffers = list[bytes | memoryview]
Done = Callable[[], None]
OnPartial = Callable[[int], None]


def _do_nothing() -> None:
    """Callback for messages without one."""


@dataclass(order=True, slots=True)
class _Message:
    priority: int
    sequence: int
    header: DataHeader | None = field(compare=False)
    payload: memoryview = field(compare=False)
    done: Done = field(compare=False)
    on_ack: Done | None = field(default=None, compare=False)
    on_partial: OnPartial | None = field(default=None, compare=False)
    stream: int | None = field(default=None, compare=False)
    sent: int = field(default=0, compare=False)
    leaving: int = field(default=0, compare=False)

    @property
    def is_sent(self) -> bool:
        return self.sent == len(self.payload)


@dataclass
class Batch:
    """Bytes to write now to one connection, and how many of them are data.

    Attributes
    ----------
    state_bytes : How many are of state, with their framing.
    messages : Number of messages that these bytes complete.
    """

    buffers: Buffers = field(default_factory=list)
    pieces: list[_Message] = field(default_factory=list)
    size: int = 0
    data_bytes: int = 0
    state_bytes: int = 0
    messages: int = 0

    def left(self) -> None:
        """These bytes have left, or never will: call `done` of the messages that are complete."""
        pieces, self.pieces = self.pieces, []
        for message in pieces:
            message.leaving -= 1
        for message in pieces:
            if message.is_sent and not message.leaving:
                done, message.done = message.done, _do_nothing
                done()


class Outbox:
    """Orders messages: control first, then gradients, activations and state, each first in, first out.

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
        self._sent_bytes = self._values_end = 0  # of data, and up to the last byte of a value
        self._controls: deque[Done] = deque()
        self._controls_acked = 0
        self._begun: dict[int, _Message] = {}
        self._unfinished: set[int] = set()

    def __len__(self) -> int:
        """Number of messages that are not completely handed out."""
        return len(self._control) + len(self._queue)

    @property
    def in_flight_bytes(self) -> int:
        """Payload bytes of data that the receiver has not confirmed."""
        return WINDOW_BYTES - self._credit

    @property
    def has_values(self) -> bool:
        """Whether gradients or activations wait here, or are on their way and not confirmed."""
        waits = bool(self._queue) and self._queue[0].priority < _STATE
        return waits or self._sent_bytes - self.in_flight_bytes < self._values_end

    @property
    def has_state(self) -> bool:
        """Whether state is what comes next."""
        return bool(self._queue) and self._queue[0].priority == _STATE

    def post_control(self, payload: memoryview, on_ack: Done | None = None) -> None:
        """Queue a control message; `on_ack` is called when the receiver confirms its arrival."""
        self._controls.append(on_ack or _do_nothing)
        self._control.append(_Message(_CONTROL, 0, None, payload, _do_nothing))

    def post(
        self,
        header: DataHeader,
        payload: memoryview,
        done: Done | None,
        on_ack: Done | None = None,
        on_partial: OnPartial | None = None,
        start: int = 0,
    ) -> None:
        """Queue a data message; do not change `payload` until `done` has been called, exactly once.

        `on_ack` is called at most once, when the receiver confirms that the message arrived completely.
        `on_partial` is called if the link is lost and the receiver reports how many of the first bytes it has
        saved. The receiver already has the bytes before `start`.
        """
        if isinstance(header, ValueHeader):
            priority = _GRADIENT if header.gradient else _ACTIVATION
        else:
            priority = _STATE
        message = _Message(
            priority, self._sequence, header, payload, done or _do_nothing, on_ack, on_partial, sent=start
        )
        heapq.heappush(self._queue, message)
        self._sequence += 1

    def credit(self, count: int) -> None:
        """The receiver has read `count` bytes; ProtocolError if they were never sent."""
        if self._credit + count > WINDOW_BYTES:
            raise ProtocolError(
                f"expected credit for at most {WINDOW_BYTES - self._credit} bytes, found {count}"
            )
        self._credit += count

    def on_ack(self, receipt: Receipt) -> None:
        """Process the receiver's list of complete messages.

        Raises
        ------
        ProtocolError
            Some of them were never sent.
        """
        fresh = receipt.controls - self._controls_acked
        if fresh > len(self._controls) or receipt.opened > self._next_stream:
            raise ProtocolError("the peer acknowledged messages that were never sent")
        callbacks = [self._controls.popleft() for _ in range(fresh)]
        self._controls_acked += len(callbacks)
        complete = [self._begun.pop(stream) for stream in list(self._begun) if receipt.holds(stream)]
        callbacks += [message.on_ack or _do_nothing for message in complete]
        self._unfinished = {stream for stream in self._unfinished if not receipt.holds(stream)}
        for callback in callbacks:
            callback()

    def on_final_ack(self, receipt: Receipt) -> None:
        """Process the receiver's last list, sent over another link after this one was lost.

        It includes how many bytes of incomplete messages the receiver has saved.

        Raises
        ------
        ProtocolError
            Some of them were never sent.
        """
        self.on_ack(receipt)
        parts = dict(receipt.parts)
        for stream, message in self._begun.items():
            if (size := parts.get(stream, 0)) > message.sent:
                raise ProtocolError(
                    f"the peer acknowledged {size} bytes of a message of which {message.sent} were sent"
                )
            if message.on_partial is not None and stream < receipt.opened:
                message.on_partial(size)

    def withdraw(self, matches: Callable[[DataHeader], bool]) -> list[Cancel]:
        """Drop the data messages that match; returns the frames that tell the receiver."""
        remaining: list[_Message] = []
        dropped: list[_Message] = []
        for message in self._queue:
            gone = message.header is not None and matches(message.header)
            (dropped if gone else remaining).append(message)
        heapq.heapify(remaining)
        self._queue = remaining
        for message in dropped:
            if message.stream is not None:
                self._begun.pop(message.stream, None)
            message.done()
        return [Cancel(message.stream, message.sent) for message in dropped if message.stream is not None]

    def clear(self) -> None:
        """Drop everything that has not left."""
        dropped, self._queue = self._queue, []
        self._control.clear()
        for message in dropped:
            message.done()

    def batch(self, chunk_bytes: int, takes_control: bool = True, takes_state: bool = True) -> Batch:
        """The next chunks, in order, up to the size of one chunk or the available credit."""
        batch = Batch()
        while takes_control and self._control and batch.size < chunk_bytes:
            message = self._control[0]
            self._cut(message, chunk_bytes, batch)
            if message.is_sent:
                self._control.popleft()
        while self._queue and batch.size < chunk_bytes:
            message = self._queue[0]
            if message.priority == _STATE and not takes_state:
                break
            size = min(chunk_bytes, len(message.payload) - message.sent)
            if size > self._credit or (message.stream is None and self._must_wait):
                break
            self._credit -= size
            batch.data_bytes += size
            self._cut(message, chunk_bytes, batch)
            if message.is_sent:
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
        if message.header is not None:
            self._sent_bytes += size
        if message.priority == _STATE:
            batch.state_bytes += len(head) + size
        elif message.header is not None:
            self._values_end = self._sent_bytes
        batch.messages += message.is_sent

    def _frame(self, message: _Message) -> Control | Open | Chunk:
        if message.header is None:
            return Control(message.sent, len(message.payload))
        if message.stream is not None:
            return Chunk(message.stream, message.sent)
        message.stream = self._next_stream
        self._next_stream += 1
        self._unfinished.add(message.stream)
        if message.on_ack is not None:
            self._begun[message.stream] = message
        controls = self._controls_acked + len(self._controls)
        return Open(message.stream, message.header, controls, message.sent)

"""The receiving half of a link: handles each frame, and assembles messages from chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farflung.errors import ProtocolError
from farflung.transport.handler import HEAD_BYTES, Handler
from farflung.transport.link.outbox import WINDOW_BYTES
from farflung.transport.link.ranges import ByteRanges, Part, Parts
from farflung.transport.link.rate_estimator import MINIMUM_CHUNK_BYTES
from farflung.transport.wire.frames import (
    Ack,
    Cancel,
    Chunk,
    Close,
    Control,
    Credit,
    Frame,
    Open,
    Ping,
    Pong,
    Widen,
    kind_of,
)
from farflung.transport.wire.frames import Stripe as StripeFrame
from farflung.transport.wire.headers import MAXIMUM_STREAMS, DataHeader, Receipt, SliceHeader

if TYPE_CHECKING:
    from farflung.transport.link.link import Link
    from farflung.transport.striping.stripe import Stripe
    from farflung.transport.striping.stripe_set import StripeSet

MAXIMUM_RANGES = WINDOW_BYTES // MINIMUM_CHUNK_BYTES
"""Limit on the ranges of one message, with gaps between them: credit allows no more chunks in flight."""


@dataclass(slots=True)
class _Arriving:
    header: DataHeader
    memory: memoryview | None
    begun: ByteRanges = field(default_factory=ByteRanges)
    ended: ByteRanges = field(default_factory=ByteRanges)
    cancelled_after: int | None = None

    @property
    def is_over(self) -> bool:
        total = self.header.bytes if self.cancelled_after is None else self.cancelled_after
        return self.ended.count >= total


class Inbox:
    """Writes chunks to their destination. A repeated chunk ends the link, as does a gap if there is only one
    connection.

    Attributes
    ----------
    is_striped : Whether chunks arrive over several connections, in any order.
    messages : Number of complete control and data messages.
    saved_parts : Beginnings of messages, from earlier links of the same session.
    """

    def __init__(self, link: Link, handler: Handler) -> None:
        self._link = link
        self._handler = handler
        self._streams: dict[int, _Arriving] = {}
        self._next_stream = 0
        self._awaited: set[int] = set()
        self._pieces: list[bytearray] = []
        self._control_total = 0
        self._control_received = 0
        self._controls = 0
        self.is_striped = False
        self.messages = 0
        self.saved_parts = Parts()

    def is_due(self, frame: Frame) -> bool:
        """Whether the frames that precede this one have arrived; if not, another connection brings them."""
        match frame:
            case Open(_, _, controls):
                return controls <= self._controls
            case Chunk(stream) | Cancel(stream):
                return stream < self._next_stream and stream not in self._awaited
            case _:
                return True

    @property
    def receipt(self) -> Receipt:
        """What has completely arrived."""
        return Receipt(self._controls, self._next_stream, (*self._streams, *self._awaited))

    @property
    def awaits_more(self) -> bool:
        """Whether some data message is incomplete that its sender does not hold back, as it does copies."""
        return any(not _is_copy(arriving.header) for arriving in self._streams.values())

    @property
    def unfinished(self) -> list[DataHeader]:
        """Headers of the incomplete data messages that the handler allocated memory for."""
        return [a.header for a in self._streams.values() if a.memory is not None]

    @property
    def parts(self) -> list[Part]:
        """The beginnings of those messages, up to the first gap, where not empty."""
        return [
            Part(stream, arriving.header, arriving.memory, arriving.ended.contiguous)
            for stream, arriving in self._streams.items()
            if arriving.memory is not None and arriving.ended.contiguous
        ]

    def begin_control(self, frame: Control, size: int) -> memoryview:
        """Memory for a piece of a control message; ProtocolError if it is not the next one."""
        if frame.offset != self._control_received:
            raise ProtocolError(
                f"expected a control message from byte {self._control_received}, found {frame.offset}"
            )
        if frame.offset == 0:
            if self._link.guard is not None:
                self._link.guard.on_control_begins(self._link, frame.total)
            self._control_total = frame.total
        _check_fit(frame.offset, size, frame.total)
        if frame.total != self._control_total:
            raise ProtocolError(
                f"expected a control message of {self._control_total} bytes, found {frame.total}"
            )
        # Memory grows with the pieces: an announced size alone must not allocate any.
        self._pieces.append(bytearray(size))
        return memoryview(self._pieces[-1])

    def end_control(self, size: int) -> None:
        """The piece is complete; ProtocolError if the guard or the handler refuses the message."""
        before, head = self._control_received, min(HEAD_BYTES, self._control_total)
        self._control_received += size
        if self._link.guard is not None and before < head <= self._control_received:
            shown = b"".join(piece[:head] for piece in self._pieces)[:head]
            self._link.guard.on_control_head(self._link, shown, self._control_total)
        if self._control_received == self._control_total:
            message = b"".join(self._pieces)
            self._pieces, self._control_received = [], 0
            self._controls += 1
            self.messages += 1
            if self._link.guard is not None:
                self._link.guard.on_control_ends(self._link)
            self._handler.control(self._link, message)

    def forget_control(self) -> None:
        """Free the pieces of an unfinished control message: a later link begins it anew.

        They may be tens of megabytes, and a link that is over may stay in memory for long.
        """
        self._pieces = []

    def begin_open(self, frame: Open, size: int) -> memoryview | None:
        """Memory for the first chunk of a message; ProtocolError if the stream was opened before."""
        is_next = frame.stream == self._next_stream
        is_late = frame.stream in self._awaited
        skipped = max(0, frame.stream - self._next_stream)
        if not (is_next or (self.is_striped and (is_late or skipped))):
            raise ProtocolError(
                f"expected stream {self._next_stream} to be opened, found {frame.stream}: a replay?"
            )
        if len(self._streams) + len(self._awaited) + skipped - is_late >= MAXIMUM_STREAMS:
            raise ProtocolError(f"expected at most {MAXIMUM_STREAMS} unfinished messages, found one more")
        self._awaited.update(range(self._next_stream, frame.stream))
        self._awaited.discard(frame.stream)
        self._next_stream = max(self._next_stream, frame.stream + 1)
        _check_fit(frame.start, size, frame.header.bytes)
        memory = self._handler.opening(self._link, frame.header)
        if memory is not None and memory.nbytes != frame.header.bytes:
            raise ValueError(f"the handler returned {memory.nbytes} bytes of memory for {frame.header.bytes}")
        memory = None if memory is None else memory.cast("B")
        arriving = self._streams[frame.stream] = _Arriving(frame.header, memory)
        self.saved_parts.resume(frame.header, frame.start, memory)
        if frame.start:
            arriving.begun.add(0, frame.start)
            arriving.ended.add(0, frame.start)
        if size:
            arriving.begun.add(frame.start, size)
        return None if memory is None else memory[frame.start : frame.start + size]

    def begin_chunk(self, frame: Chunk, size: int) -> memoryview | None:
        """Memory for a further chunk; ProtocolError if its stream is not open, or it overlaps an earlier
        chunk.
        """
        arriving = self._streams.get(frame.stream)
        if arriving is None:
            raise ProtocolError(f"expected a chunk of an open stream, found one of stream {frame.stream}")
        begun = arriving.begun
        leaves_gap = not self.is_striped and frame.offset != begun.contiguous
        if leaves_gap or size == 0 or not begun.add(frame.offset, size):
            raise ProtocolError(
                f"expected bytes from {begun.contiguous} of stream {frame.stream}, found {size} from"
                f" {frame.offset}: a replay?"
            )
        if begun.ranges > MAXIMUM_RANGES:
            raise ProtocolError(f"expected a message in at most {MAXIMUM_RANGES} pieces, found one more")
        _check_fit(frame.offset, size, arriving.header.bytes)
        return None if arriving.memory is None else arriving.memory[frame.offset : frame.offset + size]

    def end_data(self, frame: Open | Chunk, size: int) -> None:
        """The chunk is complete."""
        stream, arriving = frame.stream, self._streams[frame.stream]
        if size:
            arriving.ended.add(frame.start if isinstance(frame, Open) else frame.offset, size)
        if not arriving.is_over:
            return
        del self._streams[stream]
        if arriving.cancelled_after is not None:
            return
        self.messages += 1
        if arriving.memory is not None:
            self._handler.complete(self._link, arriving.header, arriving.memory)

    def cancel(self, frame: Cancel) -> None:
        """The sender ended a stream early; ProtocolError if it is not open, or more had arrived."""
        arriving = self._streams.get(frame.stream)
        if arriving is None or arriving.cancelled_after is not None:
            raise ProtocolError(f"expected an open stream to be cancelled, found {frame.stream}")
        if not arriving.begun.count <= frame.sent < arriving.header.bytes:
            raise ProtocolError(f"expected a stream cancelled before its end, found {frame.sent} bytes of it")
        arriving.memory, arriving.cancelled_after = None, frame.sent
        if arriving.is_over:
            del self._streams[frame.stream]


class FrameDispatch:
    """Decides how to handle each frame of an open link.

    Parameters
    ----------
    inbox
        Receives data and control messages.
    stripes
        The link's connections; frames about the other direction go to their sender.
    on_pong
        Called with the stamp of an answered ping.
    dialled
        Whether this side opens further stripes when asked to.
    """

    def __init__(
        self, inbox: Inbox, stripes: StripeSet, on_pong: Callable[[float], None], dialled: bool
    ) -> None:
        self.inbox = inbox
        self._stripes = stripes
        self._sender = stripes.sender
        self._on_pong = on_pong
        self._dialled = dialled

    def is_due(self, stripe: Stripe, frame: Frame) -> bool:
        """Whether the frame can be handled now. Over several connections, a chunk may outrun its stream's
        first.

        Raises
        ------
        ProtocolError
            Every connection waits for another.
        """
        if not self.inbox.is_striped or self.inbox.is_due(frame):
            return True
        if not self._stripes.may_hold(stripe):
            raise ProtocolError("expected a stream's first chunk, but every connection is already past it")
        return False

    def begin(self, stripe: Stripe, frame: Frame, payload_bytes: int) -> memoryview | None:
        """Memory for the payload, None to drop it; ProtocolError if the frame is not allowed here."""
        if stripe is not self._stripes.primary and not isinstance(frame, Open | Chunk | StripeFrame | Close):
            raise ProtocolError(f"expected only data on a further connection, found a {kind_of(frame)} frame")
        if isinstance(frame, Chunk):
            self._sender.owe(payload_bytes)
            return self.inbox.begin_chunk(frame, payload_bytes)
        if isinstance(frame, Open):
            self._sender.owe(payload_bytes)
            memory = self.inbox.begin_open(frame, payload_bytes)
            self._release_held()
            return memory
        if isinstance(frame, Control):
            return self.inbox.begin_control(frame, payload_bytes)
        return None

    def end(self, frame: Frame, payload_bytes: int) -> None:
        """Handle a complete frame; ProtocolError if it is not allowed."""
        match frame:
            case Chunk() | Open():
                self.inbox.end_data(frame, payload_bytes)
                self._sender.receipt(self.inbox.receipt)
            case Control():
                self.inbox.end_control(payload_bytes)
                self._release_held()
                self._sender.receipt(self.inbox.receipt)
            case Credit(count):
                self._sender.credit(count)
            case Ping(stamp):
                self._sender.pong(stamp)
            case Pong(stamp):
                self._on_pong(stamp)
            case Cancel():
                self.inbox.cancel(frame)
            case Widen(connections) if self._dialled:
                self._stripes.open(connections)
            case Ack(receipt):
                self._sender.on_ack(receipt)
            case _:
                raise ProtocolError(f"expected no {kind_of(frame)} frame on an open link, found one")

    def _release_held(self) -> None:
        # Stripes are held only while they wait for each other.
        if self.inbox.is_striped:
            self._stripes.release()


def _check_fit(offset: int, size: int, total: int) -> None:
    if offset + size > total:
        raise ProtocolError(f"expected {total} bytes in all, found {size} more after {offset}")
    if size == 0 and total > 0:
        raise ProtocolError(f"expected some of {total} bytes, found an empty piece")


def _is_copy(header: DataHeader) -> bool:
    """Whether a message is a slice of a copy, which gives way to values (`governor`)."""
    return isinstance(header, SliceHeader) and header.unit is not None

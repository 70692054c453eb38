"""What a link is receiving: streams and control messages that are not whole yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farflung.errors import ProtocolError
from farflung.transport.frames import Chunk, Control, Open
from farflung.transport.handler import Handler
from farflung.transport.headers import MAXIMUM_STREAMS, DataHeader, Receipt

if TYPE_CHECKING:
    from farflung.transport.link import Link


@dataclass(slots=True)
class _Arriving:
    header: DataHeader
    memory: memoryview | None
    received: int = 0


class Inbox:
    """Puts chunks where they belong; a chunk that is not the next of its stream ends the link."""

    def __init__(self, link: Link, handler: Handler) -> None:
        self._link = link
        self._handler = handler
        self._streams: dict[int, _Arriving] = {}
        self._next_stream = 0
        self._pieces: list[bytearray] = []
        self._control_total = 0
        self._control_received = 0
        self._controls = 0
        self.messages = 0

    @property
    def receipt(self) -> Receipt:
        """What has come whole."""
        return Receipt(self._controls, self._next_stream, tuple(self._streams))

    @property
    def unfinished(self) -> list[DataHeader]:
        """The data messages that the handler gave memory for and that are not whole."""
        return [a.header for a in self._streams.values() if a.memory is not None]

    def begin_control(self, frame: Control, size: int) -> memoryview:
        """Memory for a piece of a control message; ProtocolError if it is not the next one."""
        if frame.offset != self._control_received:
            raise ProtocolError(
                f"expected a control message from byte {self._control_received}, found {frame.offset}"
            )
        if frame.offset == 0:
            self._control_total = frame.total
        _check_fit(frame.offset, size, frame.total)
        if frame.total != self._control_total:
            raise ProtocolError(
                f"expected a control message of {self._control_total} bytes, found {frame.total}"
            )
        # Memory grows as pieces come: a stated size alone must not take any.
        self._pieces.append(bytearray(size))
        return memoryview(self._pieces[-1])

    def end_control(self, size: int) -> None:
        """The piece is here."""
        self._control_received += size
        if self._control_received == self._control_total:
            message = b"".join(self._pieces)
            self._pieces, self._control_received = [], 0
            self._controls += 1
            self.messages += 1
            self._handler.control(self._link, message)

    def begin_open(self, frame: Open, size: int) -> memoryview | None:
        """Memory for the first chunk of a message; ProtocolError if the stream is not the next."""
        if frame.stream != self._next_stream:
            raise ProtocolError(
                f"expected stream {self._next_stream} to be opened, found {frame.stream}: a replay?"
            )
        if len(self._streams) >= MAXIMUM_STREAMS:
            raise ProtocolError(f"expected at most {MAXIMUM_STREAMS} unfinished messages, found one more")
        self._next_stream += 1
        _check_fit(0, size, frame.header.bytes)
        memory = self._handler.opening(self._link, frame.header)
        if memory is not None and memory.nbytes != frame.header.bytes:
            raise ValueError(f"memory of {memory.nbytes} bytes was given for {frame.header.bytes}")
        memory = None if memory is None else memory.cast("B")
        self._streams[frame.stream] = _Arriving(frame.header, memory)
        return None if memory is None else memory[:size]

    def begin_chunk(self, frame: Chunk, size: int) -> memoryview | None:
        """Memory for a further chunk; ProtocolError if it is not the next of an open stream."""
        arriving = self._streams.get(frame.stream)
        if arriving is None:
            raise ProtocolError(f"expected a chunk of an open stream, found one of stream {frame.stream}")
        if frame.offset != arriving.received or size == 0:
            raise ProtocolError(
                f"expected bytes from {arriving.received} of stream {frame.stream}, found {size} from"
                f" {frame.offset}: a replay?"
            )
        _check_fit(frame.offset, size, arriving.header.bytes)
        return None if arriving.memory is None else arriving.memory[frame.offset : frame.offset + size]

    def end_data(self, stream: int, size: int) -> None:
        """The chunk is here."""
        arriving = self._streams[stream]
        arriving.received += size
        if arriving.received < arriving.header.bytes:
            return
        del self._streams[stream]
        self.messages += 1
        if arriving.memory is not None:
            self._handler.complete(self._link, arriving.header, arriving.memory)

    def cancel(self, stream: int) -> None:
        """The rest of a stream will not come; ProtocolError if it is not open."""
        if self._streams.pop(stream, None) is None:
            raise ProtocolError(f"expected an open stream to be cancelled, found {stream}")


def _check_fit(offset: int, size: int, total: int) -> None:
    if offset + size > total:
        raise ProtocolError(f"expected {total} bytes in all, found {size} more after {offset}")
    if size == 0 and total > 0:
        raise ProtocolError(f"expected some of {total} bytes, found an empty piece")

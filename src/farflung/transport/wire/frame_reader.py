"""Cut a byte stream into frames, and write payloads directly to their destination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from farflung.transport.wire.frames import MAXIMUM_HEADER_BYTES, PREFIX_BYTES, Frame, read_header, read_prefix

# Bytes read together with a header are copied once more, so this is small compared with a chunk, but large
# enough to read several small frames at once.
_SCRATCH_BYTES = 16 * 1024
assert _SCRATCH_BYTES >= PREFIX_BYTES + MAXIMUM_HEADER_BYTES

# Shared by all readers: nothing reads these bytes.
_DISCARDED = memoryview(bytearray(256 * 1024))


class Sink(Protocol):
    """Receives frames. Either method may raise ProtocolError, after which the reader must be stopped."""

    def begin(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        """Return memory of exactly `payload_bytes` for the payload, or None to drop it."""

    def end(self, frame: Frame, payload_bytes: int) -> None:
        """The frame's payload is complete."""


class FrameReader:
    """Hands out memory to receive into (`buffer`) and parses what was written to it (`received`).

    A frame for which `is_due` is false is held until `release`, along with all frames behind it.
    """

    def __init__(self, sink: Sink, is_due: Callable[[Frame], bool] = lambda frame: True) -> None:
        self._sink = sink
        self._is_due = is_due
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._filled = 0
        self._frame: Frame | None = None
        self._target: memoryview | None = None
        self._size = 0
        self._is_held = False
        self._is_over = False
        self._missing = 0

    def buffer(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        if self._is_over:
            return _DISCARDED
        if not self._missing:
            return self._scratch[self._filled :]
        return _DISCARDED[: self._missing] if self._target is None else self._target

    def received(self, count: int) -> None:
        """Process the first `count` bytes of the memory that `buffer` returned.

        Raises
        ------
        ProtocolError
            They are not valid frames, or the sink refuses them.
        """
        if self._is_over:
            return
        if not self._missing:
            self._filled += count
            self._parse()
            return
        self._missing -= count
        if self._missing:
            self._target = None if self._target is None else self._target[count:]
            return
        frame, self._frame, self._target = self._frame, None, None
        assert frame is not None
        self._sink.end(frame, self._size)

    def stop(self) -> None:
        """Discard everything that still arrives."""
        self._is_over = True

    def drop_payload(self) -> None:
        """Stop writing the current payload to the sink's memory."""
        self._target = None

    def hold(self) -> None:
        """Parse no further frame until `release`; do not receive anything meanwhile."""
        self._is_held = True

    def release(self) -> None:
        """Continue with the frames that have arrived already; ProtocolError as in `received`."""
        self._is_held = False
        self._parse()

    def _parse(self) -> None:
        start = 0
        while not (self._missing or self._is_held or self._is_over) and self._filled - start >= PREFIX_BYTES:
            body = start + PREFIX_BYTES
            number, header_bytes, payload_bytes = read_prefix(self._scratch[start:body])
            payload = body + header_bytes
            if self._filled < payload:
                break
            frame = read_header(number, self._scratch[body:payload])
            if not self._is_due(frame):
                self._is_held = True
                break
            start = payload + self._begin(frame, payload_bytes, payload)
        rest = self._filled - start
        if start:
            self._scratch[:rest] = self._scratch[start : self._filled]
        self._filled = rest

    def _begin(self, frame: Frame, payload_bytes: int, start: int) -> int:
        target = self._sink.begin(frame, payload_bytes)
        present = min(payload_bytes, self._filled - start)
        if target is not None:
            target[:present] = self._scratch[start : start + present]
        self._missing = payload_bytes - present
        if self._missing:
            self._frame, self._size = frame, payload_bytes
            self._target = None if target is None else target[present:]
        else:
            self._sink.end(frame, payload_bytes)
        return present

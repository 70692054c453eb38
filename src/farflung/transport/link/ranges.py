"""Which bytes of a message have arrived, and parts of messages that were saved when their link was lost."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from farflung.errors import ProtocolError
from farflung.transport.wire.headers import MAXIMUM_STREAMS, DataHeader

MAXIMUM_SAVED_BYTES = 64 * 2**20
"""Limit on the memory of a session's saved message parts; further messages start again."""


class ByteRanges:
    """Byte ranges that never overlap, merged where they touch; `count` bytes in total."""

    def __init__(self) -> None:
        self.count = 0
        self._starts: list[int] = []
        self._ends: list[int] = []

    @property
    def contiguous(self) -> int:
        """The end of the range that starts at 0, or 0."""
        return self._ends[0] if self._starts and self._starts[0] == 0 else 0

    @property
    def ranges(self) -> int:
        """The number of separate ranges."""
        return len(self._starts)

    def add(self, start: int, size: int) -> bool:
        """Add a range of at least one byte; returns False and changes nothing if it overlaps another."""
        starts, ends, end = self._starts, self._ends, start + size
        after = bisect_left(starts, start)
        if (after < len(starts) and starts[after] < end) or (after and ends[after - 1] > start):
            return False
        self.count += size
        joins_before = after > 0 and ends[after - 1] == start
        joins_after = after < len(starts) and starts[after] == end
        if joins_before and joins_after:
            ends[after - 1] = ends[after]
            del starts[after], ends[after]
        elif joins_before:
            ends[after - 1] = end
        elif joins_after:
            starts[after] = start
        else:
            starts.insert(after, start)
            ends.insert(after, end)
        return True


@dataclass(frozen=True)
class Part:
    """The first `size` bytes of a message, which was sent as `stream`, have arrived in `memory`."""

    stream: int
    header: DataHeader
    memory: memoryview
    size: int


class Parts:
    """The saved parts of one session. The sender gets a list of them, and continues from there."""

    def __init__(self) -> None:
        self._parts: dict[DataHeader, Part] = {}

    def keep(self, part: Part) -> None:
        """Save a part, replacing an older one of its message, if there is room."""
        self._parts.pop(part.header, None)
        room = MAXIMUM_SAVED_BYTES - sum(len(saved.memory) for saved in self._parts.values())
        if len(self._parts) < MAXIMUM_STREAMS and len(part.memory) <= room:
            self._parts[part.header] = part

    def holds(self, part: Part) -> bool:
        """Whether exactly this part is saved."""
        saved = self._parts.get(part.header)
        return saved is not None and saved.memory is part.memory and saved.size == part.size

    def resume(self, header: DataHeader, start: int, memory: memoryview | None) -> None:
        """A message continues from byte `start`: write the saved bytes before that to `memory`.

        Raises
        ------
        ProtocolError
            Fewer than `start` bytes of it are saved.
        """
        part = self._parts.pop(header, None)
        available = 0 if part is None else part.size
        if available < start:
            raise ProtocolError(f"expected a message from byte 0 or {available}, found {start}")
        if start and memory is not None and part is not None:
            memory[:start] = part.memory[:start]

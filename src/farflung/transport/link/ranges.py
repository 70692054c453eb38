"""Which bytes of a message have come, and what is kept of messages that were cut off with their link."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from farflung.errors import ProtocolError
from farflung.transport.wire.headers import MAXIMUM_STREAMS, DataHeader

MAXIMUM_KEPT_BYTES = 64 * 2**20
"""Memory of all messages that a session keeps the beginnings of; any more begin anew."""


class ByteRanges:
    """Ranges that never overlap, merged where they touch; `count` bytes in all."""

    def __init__(self) -> None:
        self.count = 0
        self._starts: list[int] = []
        self._ends: list[int] = []

    @property
    def contiguous(self) -> int:
        """Up to where nothing is missing."""
        return self._ends[0] if self._starts and self._starts[0] == 0 else 0

    @property
    def ranges(self) -> int:
        """Into how many pieces what has come falls."""
        return len(self._starts)

    def add(self, start: int, size: int) -> bool:
        """Add a range of at least one byte; False, and nothing is changed, if some of it is there already."""
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
    """The first `size` bytes of `memory` have come of a message that went as `stream`."""

    stream: int
    header: DataHeader
    memory: memoryview
    size: int


class Parts:
    """Of one session. What is kept is told to the sender, and stays until it goes on from there."""

    def __init__(self) -> None:
        self._kept: dict[DataHeader, Part] = {}

    def keep(self, part: Part) -> None:
        """Keep a part in place of an older one of its message, if there is room."""
        self._kept.pop(part.header, None)
        room = MAXIMUM_KEPT_BYTES - sum(len(kept.memory) for kept in self._kept.values())
        if len(self._kept) < MAXIMUM_STREAMS and len(part.memory) <= room:
            self._kept[part.header] = part

    def holds(self, part: Part) -> bool:
        """Whether this one is kept, and no other of its message."""
        kept = self._kept.get(part.header)
        return kept is not None and kept.memory is part.memory and kept.size == part.size

    def resume(self, header: DataHeader, start: int, memory: memoryview | None) -> None:
        """A message is about to come from byte `start` on: write what is kept before that to `memory`.

        Raises
        ------
        ProtocolError
            So much of it was never received.
        """
        part = self._kept.pop(header, None)
        found = 0 if part is None else part.size
        if found < start:
            raise ProtocolError(f"expected a message from its beginning or byte {found}, found {start}")
        if start and memory is not None and part is not None:
            memory[:start] = part.memory[:start]

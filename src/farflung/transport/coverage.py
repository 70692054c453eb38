"""Which bytes of a message have come, in whatever order they do."""

from __future__ import annotations

from bisect import bisect_left


class Coverage:
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

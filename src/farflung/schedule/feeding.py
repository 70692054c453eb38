"""Choose which segment gets its model inputs next, as far ahead as the window allows."""

from __future__ import annotations

from collections.abc import Sequence

WINDOWS_AHEAD = 2
"""Fed microbatches that a segment has not finished yet, in windows: one runs while the next travels."""


class Feeding:
    """Feeds segments in turn, in order, one microbatch after the other.

    A segment has at most `WINDOWS_AHEAD` windows of fed microbatches that it has not finished. If it has no
    room, feeding waits for it, even if the next segment has room.
    """

    def __init__(self, segments: Sequence[int], window: int) -> None:
        self._segments = tuple(segments)
        self._room = dict.fromkeys(self._segments, WINDOWS_AHEAD * window)
        self._turn = 0

    def next(self) -> tuple[int, int] | None:
        """The next segment and microbatch to feed; None while that segment has no room."""
        if not self._segments:
            return None
        microbatch, at = divmod(self._turn, len(self._segments))
        segment = self._segments[at]
        return (segment, microbatch) if self._room[segment] else None

    def fed(self) -> None:
        """Record that the next segment was fed its next microbatch."""
        self._room[self._segments[self._turn % len(self._segments)]] -= 1
        self._turn += 1

    def finished(self, segment: int) -> None:
        """Record that `segment` has finished a microbatch."""
        self._room[segment] += 1

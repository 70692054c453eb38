"""Which segment gets its model inputs next: microbatch by microbatch, as far ahead as the window allows."""

from __future__ import annotations

from collections.abc import Sequence

WINDOWS_AHEAD = 2
"""Fed microbatches that a segment has not finished yet, in windows: one runs while the next travels."""


class Feeding:
    """Turns of the segments that are fed, in order, for one microbatch after the other.

    A segment has at most `WINDOWS_AHEAD` windows of fed microbatches that it has not finished; the turn waits
    for it, also if the next one had room.
    """

    def __init__(self, segments: Sequence[int], window: int) -> None:
        self._segments = tuple(segments)
        self._room = dict.fromkeys(self._segments, WINDOWS_AHEAD * window)
        self._turn = 0

    def next(self) -> tuple[int, int] | None:
        """The segment whose turn it is, and the number of the microbatch; None while it has no room."""
        if not self._segments:
            return None
        microbatch, at = divmod(self._turn, len(self._segments))
        segment = self._segments[at]
        return (segment, microbatch) if self._room[segment] else None

    def fed(self) -> None:
        """That segment has been fed that microbatch."""
        self._room[self._segments[self._turn % len(self._segments)]] -= 1
        self._turn += 1

    def finished(self, segment: int) -> None:
        """`segment` has finished a microbatch."""
        self._room[segment] += 1

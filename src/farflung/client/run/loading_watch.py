"""Which workers get no further while an attempt loads. Pure.

All workers share the submitter's line, so slices may take long though each worker reads as fast as it can.
What counts are the bytes that leave for a worker while something waits to be sent to it, or after all was.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

MOVED_BYTES = 2**16
"""Fewer bytes in the time that a worker may stall are heartbeats, and no progress."""


class LoadingWatch:
    """Looks at what has left for each worker from time to time; times are in seconds of any clock."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[float, int]] = {}

    def look(self, now: float, sent: Mapping[str, int], owing: Set[str]) -> dict[str, float]:
        """For each worker in `owing`, how long it has taken nothing of what it is sent.

        Parameters
        ----------
        sent
            Bytes that have left for each worker so far.
        owing
            The workers for which something waits to be sent, or which have all and should soon be ready.
        """
        found = {}
        for worker, count in sent.items():
            since, before = self._marks.get(worker, (now, count))
            if worker not in owing or count - before >= MOVED_BYTES:
                since, before = now, count
            self._marks[worker] = since, before
            if worker in owing:
                found[worker] = now - since
        return found

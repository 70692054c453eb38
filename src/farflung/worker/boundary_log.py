"""What a worker has sent to other workers in the last units, so that a neighbour that lost its state may run
them again alone. Pure.

Payloads are kept as they were encoded: what they were encoded with has learned since. SWIFT (Zhong et al.,
2022) logs the tensors at the boundaries of stages for the same purpose.
"""

from __future__ import annotations

from collections.abc import Collection

from farflung.runtime.parcel import Coded, Parcel


class BoundaryLog:
    """The parcels of the units from `since` on, of which payloads may take `most_bytes` of memory.

    If they take more, the oldest units go. Then they cannot be run again, and `since` says so.
    """

    def __init__(self, since: int, most_bytes: int) -> None:
        self.since = since
        self.most_bytes = most_bytes
        self._units: dict[int, list[Parcel[Coded]]] = {}
        self._bytes: dict[int, int] = {}

    def add(self, parcel: Parcel[Coded]) -> None:
        """Keep a parcel that was sent; its payload must not change any more."""
        if parcel.unit < self.since:
            return
        self._units.setdefault(parcel.unit, []).append(parcel)
        size = len(parcel.payload.data) if parcel.payload is not None else 0
        self._bytes[parcel.unit] = self._bytes.get(parcel.unit, 0) + size
        while sum(self._bytes.values()) > self.most_bytes:
            self.forget(min(self._units) + 1)

    def of(self, unit: int, segments: Collection[int]) -> list[Parcel[Coded]]:
        """What was sent to some segments in a unit, in the order in which it was sent."""
        return [parcel for parcel in self._units.get(unit, ()) if parcel.target in segments]

    def forget(self, unit: int) -> None:
        """Drop all units before `unit`: none of them will be run again."""
        self.since = max(self.since, unit)
        for number in [number for number in self._units if number < self.since]:
            del self._units[number], self._bytes[number]

    def drop_from(self, unit: int) -> None:
        """Drop `unit` and all later ones: they run again, and what they send is logged anew."""
        for number in [number for number in self._units if number >= unit]:
            del self._units[number], self._bytes[number]

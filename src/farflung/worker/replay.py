"""Both sides of a replay: a log of what was sent, and what the worker that runs past units again asks for.

Payloads are logged as they were encoded: what they were encoded with has learned since. SWIFT (Zhong et al.,
2022) logs the tensors at the boundaries of stages for the same purpose. Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from farflung.protocol.messages import Load
from farflung.runtime.parcel import Coded, Parcel

AHEAD = 1
"""Units that are asked for beyond the one that runs, so that computing need not wait for the lines."""


class BoundaryLog:
    """The parcels of the units from `since` on, of which payloads may take `most_bytes` of memory.

    If they take more, the oldest units go. Then they cannot be run again, and `since` says so.
    """

    def __init__(self, since: int, most_bytes: int) -> None:
        self.since = since
        self.most_bytes = most_bytes
        self._units: dict[int, list[Parcel[Coded]]] = {}
        self._bytes: dict[int, int] = {}
        self._total = 0

    def add(self, parcel: Parcel[Coded]) -> None:
        """Keep a parcel that was sent; its payload must not change any more."""
        if parcel.unit < self.since:
            return
        self._units.setdefault(parcel.unit, []).append(parcel)
        size = len(parcel.payload.data) if parcel.payload is not None else 0
        self._bytes[parcel.unit] = self._bytes.get(parcel.unit, 0) + size
        self._total += size
        while self._total > self.most_bytes:
            self.forget(min(self._units) + 1)

    def of(self, unit: int, segments: Collection[int]) -> list[Parcel[Coded]]:
        """What was sent to some segments in a unit, in the order in which it was sent."""
        return [parcel for parcel in self._units.get(unit, ()) if parcel.target in segments]

    def forget(self, unit: int) -> None:
        """Drop all units before `unit`: none of them will be run again."""
        self.since = max(self.since, unit)
        for number in [number for number in self._units if number < self.since]:
            self._drop(number)

    def drop_from(self, unit: int) -> None:
        """Drop `unit` and all later ones: they run again, and what they send is logged anew."""
        for number in [number for number in self._units if number >= unit]:
            self._drop(number)

    def _drop(self, number: int) -> None:
        del self._units[number]
        self._total -= self._bytes.pop(number)


class Replay:
    """The units that this worker runs again: from `load.unit` on, one for each entry of `load.history`.

    `over` is the first unit that it does not run again, `current` the one that it runs now.
    """

    def __init__(self, load: Load) -> None:
        self._units = load.training.units()
        self.current = load.unit
        self.over = load.unit + len(load.history)
        self._asked: dict[str, int] = {}

    def due(self, peer: str) -> list[int]:
        """The units that `peer` is to be asked for now, each of them once; evaluations need nothing."""
        first = self._asked.get(peer, self.current)
        last = min(self.current + AHEAD, self.over - 1)
        self._asked[peer] = max(first, last + 1)
        return [unit for unit in range(first, last + 1) if (found := self._units.at(unit)) and found.train]

    def advance(self) -> None:
        """The current unit is applied again."""
        self.current += 1

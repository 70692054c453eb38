"""Both sides of a replay: a log of what was sent, and what a worker that runs past units again asks for.

Payloads are logged as they were encoded: what they were encoded with has learned since. SWIFT (Zhong et al.,
2022) logs the tensors at the boundaries of stages for the same purpose. Neighbours that run the same units
again send each other what they compute. Pure.
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

    `over` is the first unit that it does not run again, `current` the one that it runs now. Nothing is sent
    but to a neighbour among the replayers, in the units that it has asked for: before, it may not be ready.
    """

    def __init__(self, load: Load) -> None:
        self._units = load.training.units()
        self.current = load.unit
        self.over = load.unit + len(load.history)
        self._asked: dict[str, int] = {}
        self._replayers = frozenset(load.replayers)
        self._open: set[tuple[str, int]] = set()
        self._waiting: dict[tuple[str, int], list[Parcel[Coded]]] = {}

    def due(self, peer: str) -> list[int]:
        """The units that `peer` is to be asked for now, each of them once; evaluations need nothing."""
        first = self._asked.get(peer, self.current)
        last = min(self.current + AHEAD, self.over - 1)
        self._asked[peer] = max(first, last + 1)
        return [unit for unit in range(first, last + 1) if (found := self._units.at(unit)) and found.train]

    def forget(self, peer: str) -> None:
        """`peer` was asked for nothing yet."""
        self._asked.pop(peer, None)

    def asked_by(self, peer: str, unit: int) -> list[Parcel[Coded]]:
        """What waits for a replayer that asks for a unit; the rest of it may be sent as it comes."""
        self._open.add((peer, unit))
        return self._waiting.pop((peer, unit), [])

    def may_send(self, peer: str, parcel: Parcel[Coded]) -> bool:
        """Whether to send a parcel now; else it waits until `peer` asks for its unit, if it ever does."""
        if parcel.unit >= self.over or (peer, parcel.unit) in self._open:
            return True
        if peer in self._replayers:
            self._waiting.setdefault((peer, parcel.unit), []).append(parcel)
        return False

    def advance(self) -> None:
        """The current unit is applied again."""
        self.current += 1

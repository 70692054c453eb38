"""How many bytes left since the last unit, and what comes how fast, as links saw it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from farflung.protocol.messages import UnitReady
from farflung.protocol.worker import WayRate

MOST_RATE = 1e12


class Counters(Protocol):
    """What has been sent since the worker started, framing included; `Peers` counts it."""

    @property
    def bytes_sent(self) -> int:
        """To everybody."""

    def bytes_sent_to(self, peer: str) -> int:
        """To one of them."""

    def rate_from(self, peer: str) -> float | None:
        """What the way from a peer carries, in bytes a second; None before its traffic has shown that."""


class TrafficMeter:
    """Reads the counters once a unit.

    What is still queued when a worker is ready counts for its next unit: over a run that is the end of one.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._total = 0
        self._by_peer: dict[str, int] = {}
        self._told: dict[str, float] = {}

    def begin(self, peers: frozenset[str]) -> None:
        """Count from now on."""
        self._total = self._counters.bytes_sent
        self._by_peer = {peer: self._counters.bytes_sent_to(peer) for peer in peers}
        self._told = {}

    def fill(self, ready: UnitReady) -> UnitReady:
        """Put what left since the last reading, or since the beginning, into a `UnitReady`."""
        sent = self._counters.bytes_sent - self._total
        self._total += sent
        links = []
        for link in ready.links:
            now = self._counters.bytes_sent_to(link.target)
            before, self._by_peer[link.target] = self._by_peer.get(link.target, 0), now
            links.append(msgspec.structs.replace(link, wire_bytes=now - before))
        return msgspec.structs.replace(ready, bytes_sent=sent, links=links, rates=self.rates())

    def rates(self) -> list[WayRate]:
        """Those that moved since they were told: a reading that is told again would count as another one."""
        found = ((peer, self._counters.rate_from(peer)) for peer in sorted(self._by_peer))
        rates = {peer: min(rate, MOST_RATE) for peer, rate in found if rate}
        moved = [WayRate(peer, rate) for peer, rate in rates.items() if rate != self._told.get(peer)]
        self._told = rates
        return moved

"""Count the bytes sent in each unit, and report the rates of incoming links."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from farflung.protocol.traffic import LinkRate
from farflung.worker.events import Traffic

MOST_RATE = 1e12


class Counters(Protocol):
    """Counters of bytes sent since the worker started, including framing; implemented by `Peers`.

    State, copies above all, is counted apart.
    """

    @property
    def bytes_sent(self) -> int:
        """Bytes sent to all peers."""

    @property
    def state_bytes_sent(self) -> int:
        """Bytes of state sent to all peers."""

    def bytes_sent_to(self, peer: str) -> int:
        """Bytes sent to one peer."""

    def rate_from(self, peer: str) -> float | None:
        """Rate of the link from a peer in bytes per second; None until its traffic has shown it."""


class TrafficMeter:
    """Reads the counters once per unit.

    Bytes that are still queued when a worker is ready count for its next unit.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._total = self._state = 0
        self._by_peer: dict[str, int] = {}
        self._reported: dict[str, float] = {}

    def begin(self, peers: frozenset[str]) -> None:
        """Start counting."""
        self._total, self._state = self._counters.bytes_sent, self._counters.state_bytes_sent
        self._by_peer = {peer: self._counters.bytes_sent_to(peer) for peer in peers}
        self._reported = {}

    def read(self, targets: Iterable[str]) -> Traffic:
        """The bytes sent since the last reading, in all and to each of `targets`, and the links' rates."""
        sent = self._counters.bytes_sent - self._total
        self._total += sent
        copied = self._counters.state_bytes_sent - self._state
        self._state += copied
        wire_bytes = {}
        for target in targets:
            now = self._counters.bytes_sent_to(target)
            before, self._by_peer[target] = self._by_peer.get(target, 0), now
            wire_bytes[target] = now - before
        return Traffic(sent, wire_bytes, self.rates(), copied=copied)

    def rates(self) -> tuple[LinkRate, ...]:
        """The rates that changed since the last report; the broker would count a repeated one twice."""
        found = ((peer, self._counters.rate_from(peer)) for peer in sorted(self._by_peer))
        rates = {peer: min(rate, MOST_RATE) for peer, rate in found if rate}
        moved = [LinkRate(peer, rate) for peer, rate in rates.items() if rate != self._reported.get(peer)]
        self._reported = rates
        return tuple(moved)

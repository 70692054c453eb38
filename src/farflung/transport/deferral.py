"""Connections that must wait, because too many from their address came to nothing. Pure.

A TLS handshake costs the listener a signature and a key exchange, and who began it almost nothing. So each
source (`handshakes.source_of`) has a budget of connections that may fail. One that is used up lets only
`PER_SECOND` begin, and the others wait without costing processor time. Which of them is next is drawn by lot,
so that somebody honest behind the router of a flood has its chance, however fast the flood refills the queue.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Generic, TypeVar

from farflung.transport.handshakes import LOOPBACK, source_of

FREE = 400
"""Connections of one source that may fail at once, or be on their way. To join with a token takes two that
count: so 200 workers behind one router may join at once.
"""

PER_SECOND = 20
"""How many of these a source gets back each second; so many handshakes take 2 to 4 % of a processor.

An honest member behind the router of a flood draws lots with it for these: the more there are, the shorter it
waits.
"""

MOST_DEFERRED = 256
"""Limit on the connections that wait, of all sources together."""

_MANY_SOURCES = 1024

_Handle = TypeVar("_Handle")


class Budgets:
    """What each source has left. This machine itself has no limit: a fleet on one machine starts at once."""

    def __init__(self, free: float = FREE, per_second: float = PER_SECOND) -> None:
        self._free, self._per_second = free, per_second
        self._spent: dict[str, tuple[float, float]] = {}
        self._tidy_at = _MANY_SOURCES

    def spend(self, host: str, now: float) -> None:
        """Count a connection that begins, until it proves to be of use."""
        source = source_of(host)
        if source != LOOPBACK:
            self._spent[source] = self._spent_by(source, now) + 1, now
            self._tidy(now)

    def restore(self, host: str, now: float) -> None:
        """Count a connection as one of use: it costs nothing."""
        source = source_of(host)
        if source in self._spent:
            self._spent[source] = max(0.0, self._spent_by(source, now) - 1), now

    def is_spent(self, host: str, now: float) -> bool:
        """Whether another connection from there must wait."""
        return self._spent_by(source_of(host), now) > self._free - 1

    def __len__(self) -> int:
        """How many sources are remembered."""
        return len(self._spent)

    def _spent_by(self, source: str, now: float) -> float:
        spent, at = self._spent.get(source, (0.0, now))
        return max(0.0, spent - (now - at) * self._per_second)

    def _tidy(self, now: float) -> None:
        """Forget sources that have all of their budget, once there are twice as many as the last time."""
        if len(self._spent) < self._tidy_at:
            return
        self._spent = {one: kept for one, kept in self._spent.items() if self._spent_by(one, now) > 0}
        self._tidy_at = max(_MANY_SOURCES, 2 * len(self._spent))


class Deferred(Generic[_Handle]):
    """The connections that wait, by source."""

    def __init__(self, most: int = MOST_DEFERRED, draw: random.Random | None = None) -> None:
        self._most, self._draw = most, draw or random.Random()
        self._by_source: dict[str, list[tuple[_Handle, str]]] = {}

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._by_source.values()))

    def holds(self, host: str) -> bool:
        """Whether connections from there wait: then others join them, and none goes before them."""
        return source_of(host) in self._by_source

    def add(self, handle: _Handle, host: str) -> _Handle | None:
        """Let one from `host` wait; returns the one that is dropped for it, if there is no more room.

        That one is drawn from the source that has most.
        """
        self._by_source.setdefault(source_of(host), []).append((handle, host))
        if len(self) <= self._most:
            return None
        return self._take(max(self._by_source, key=lambda source: len(self._by_source[source])))[0]

    def due(self, budgets: Budgets, now: float) -> Iterator[tuple[_Handle, str]]:
        """Take out those that may begin, with their host, while their caller spends their budgets."""
        for source in list(self._by_source):
            while (waiting := self._by_source.get(source)) and not budgets.is_spent(waiting[0][1], now):
                yield self._take(source)

    def drain(self) -> list[_Handle]:
        """Take out all."""
        handles = [handle for waiting in self._by_source.values() for handle, _ in waiting]
        self._by_source.clear()
        return handles

    def _take(self, source: str) -> tuple[_Handle, str]:
        waiting = self._by_source[source]
        drawn = self._draw.randrange(len(waiting))
        waiting[drawn], waiting[-1] = waiting[-1], waiting[drawn]
        taken = waiting.pop()
        if not waiting:
            del self._by_source[source]
        return taken

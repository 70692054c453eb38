"""Connections that have not shown yet who they are: how many there may be, and which make room. Pure.

A peer that is honest is through in a few round trips, so the oldest ones make room for new ones: silent
connections, however many, do not keep others out. Homes behind one router have one address, so an address is
only limited in what is unfinished.
"""

from __future__ import annotations

import ipaddress
from typing import Generic, TypeVar

MOST = 256
"""Limit on all of them, joiners without a certificate included."""

MOST_OF_ONE_SOURCE = 64
"""Limit on those of one source. This machine has none of its own: a fleet on one machine starts at once."""

_Handle = TypeVar("_Handle")


class Handshakes(Generic[_Handle]):
    """The unfinished ones, each under a handle that its owner chooses."""

    def __init__(self, most: int = MOST, most_of_one: int = MOST_OF_ONE_SOURCE) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._by_source: dict[str, dict[_Handle, None]] = {}
        self._sources: dict[_Handle, str] = {}

    def __len__(self) -> int:
        """How many are unfinished."""
        return len(self._sources)

    def add(self, handle: _Handle, host: str) -> _Handle | None:
        """Note another one from `host`; returns the one that must make room for it, if any.

        That is the oldest of its own source if this has too many, else the oldest of the source that has
        most of all.
        """
        source = source_of(host)
        own = self._by_source.setdefault(source, {})
        own[handle], self._sources[handle] = None, source
        if len(own) > self._most_of_one and source != LOOPBACK:
            return self._dropped(own)
        if len(self._sources) > self._most:
            return self._dropped(max(self._by_source.values(), key=len))
        return None

    def discard(self, handle: _Handle) -> None:
        """Note that one is finished, or gone."""
        source = self._sources.pop(handle, None)
        if source is None:
            return
        own = self._by_source[source]
        del own[handle]
        if not own:
            del self._by_source[source]

    def _dropped(self, own: dict[_Handle, None]) -> _Handle:
        oldest = next(iter(own))
        self.discard(oldest)
        return oldest


LOOPBACK = "this machine"


def source_of(host: str) -> str:
    """Where an address belongs to: all of a home's IPv6 addresses begin with the same 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            network = ipaddress.ip_network((address, 64), strict=False)
            return LOOPBACK if address.is_loopback else str(network)
        address = address.ipv4_mapped
    return LOOPBACK if address.is_loopback else str(address)

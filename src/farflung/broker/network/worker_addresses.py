"""Where a worker is to be found, and whom to tell: nobody is sent to a stranger by a worker's word alone.

A worker says under which addresses it listens. What it says of the host that the broker sees it at is told to
everybody. Any other address is a claim: told once the worker's key has answered there (`proving.py`), or to
those whose own network it leads to.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.transport.addresses import EVERY_INTERFACE, format_address, parse_address

_SITE_BITS = 64
"""Of an IPv6 address: a home's, or at least one network's within it."""

_Host = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class WorkerAddresses:
    """Addresses (HOST:PORT) of one worker.

    Attributes
    ----------
    addresses : Of the host that the broker sees it at.
    claims : What else it says, in its order.
    seen : That host.
    proved : Where its key has answered to the broker, in numbers. Observed, and empty after a replay.
    """

    addresses: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    seen: str = ""
    proved: tuple[str, ...] = ()

    @property
    def said(self) -> tuple[str, ...]:
        """What the worker says, as it says it."""
        return (*self.addresses, *self.claims)

    def told(self, reader: str) -> list[str]:
        """Those that somebody may dial whom the broker sees at host `reader`: the nearest first."""
        near = [claim for claim in self.claims if _is_near(claim, self.seen, reader)]
        far = [address for address in (*self.addresses, *self.proved) if _leads_there(address, reader)]
        return list(dict.fromkeys([*near, *far]))


def worker_addresses(addresses: Sequence[str], seen_from: str) -> WorkerAddresses:
    """What a worker says, judged by where the broker sees it; one without a host is there.

    Raises
    ------
    ProtocolError
        One is no HOST:PORT.
    """
    own: list[str] = []
    claims: list[str] = []
    try:
        seen, _ = parse_address(seen_from)
        for address in addresses:
            host, port = parse_address(address)
            found = format_address(seen if host in EVERY_INTERFACE else host, port)
            (own if parse_address(found)[0] == seen else claims).append(found)
    except ConnectionFailed as error:
        raise ProtocolError(f"a worker's address was refused: {error}") from None
    return WorkerAddresses(tuple(dict.fromkeys(own)), tuple(dict.fromkeys(claims)), seen)


def may_be_tried(host: str, seen: str) -> bool:
    """Whether the broker itself may dial `host` to find the worker there that it sees at `seen`.

    One of a private network only if it meets the worker in one, else it would search its own for strangers.
    """
    address, here = _parsed(host), _parsed(seen)
    if address is None or here is None or _is_nowhere(address) or address.is_loopback:
        return False
    return address.is_global or not here.is_global


def _is_near(claim: str, seen: str, reader: str) -> bool:
    """Whether a claim leads into the network of who is told: there it can harm nobody else."""
    address, there = _parsed(parse_address(claim)[0]), _parsed(reader)
    if address is None or there is None or _is_nowhere(address):
        return False
    if address.is_global:
        return _is_one_network(address, there)
    here = _parsed(seen)
    is_one = here is not None and _is_one_network(here, there)
    return is_one and (there.is_loopback or not address.is_loopback)


def _leads_there(address: str, reader: str) -> bool:
    """Whether an address that is told to everybody means the same to this one: a loopback does to few."""
    host, there = _parsed(parse_address(address)[0]), _parsed(reader)
    return host is None or not host.is_loopback or there is None or there.is_loopback


def _is_one_network(a: _Host, b: _Host) -> bool:
    """Whether the broker sees both in one place: behind one address, in one network, or beside it."""
    if a.is_loopback and b.is_loopback:
        return True
    if isinstance(a, ipaddress.IPv6Address) and isinstance(b, ipaddress.IPv6Address):
        return int(a) >> (128 - _SITE_BITS) == int(b) >> (128 - _SITE_BITS)
    return a == b


def _is_nowhere(address: _Host) -> bool:
    return address.is_multicast or address.is_unspecified or address.is_link_local


def _parsed(host: str) -> _Host | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a name
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address  # `ipaddress` knows no loopback in the mapped form

"""A worker's addresses, and which of them other members may see.

A worker lists the addresses at which it listens, but its word alone must not send peers to strangers. An
address of the host that the worker connects from is shown to everyone. Any other address is a claim: it is
shown after the worker's key has answered there (`verification`), or to peers in whose own network it lies.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.transport.net.addresses import EVERY_INTERFACE, format_address, parse_address

_SITE_BITS = 64
"""Leading bits of an IPv6 address that identify a home, or at least one network in it."""

_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 hosts as a translator (RFC 6052) shows them in IPv6: neighbours in number, not in place."""

_Host = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class WorkerAddresses:
    """Addresses (HOST:PORT) of one worker.

    Attributes
    ----------
    addresses : Those of the host that the worker connects from.
    claims : Its other addresses, in its order.
    seen : The host that it connects from.
    proved : Numeric addresses at which its key answered the broker. Observed, and empty after a replay.
    """

    addresses: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    seen: str = ""
    verified: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """All addresses that the worker lists."""
        return (*self.addresses, *self.claims)

    def visible_to(self, reader: str) -> list[str]:
        """Addresses for a member that connects from host `reader`, nearest first."""
        near = [claim for claim in self.claims if _is_near(claim, self.seen, reader)]
        far = [
            address for address in (*self.addresses, *self.verified) if _is_reachable_from(address, reader)
        ]
        return list(dict.fromkeys([*near, *far]))


def worker_addresses(addresses: Sequence[str], seen_from: str) -> WorkerAddresses:
    """Sort a worker's addresses into own ones and claims, by the address `seen_from` that it connects from.

    A wildcard host stands for the host that it connects from.

    Raises
    ------
    ProtocolError
        An address is not HOST:PORT.
    """
    own: list[str] = []
    claims: list[str] = []
    try:
        seen, _ = parse_address(seen_from)
        for address in addresses:
            host, port = parse_address(address)
            full_address = format_address(seen if host in EVERY_INTERFACE else host, port)
            (own if parse_address(full_address)[0] == seen else claims).append(full_address)
    except ConnectionFailed as error:
        raise ProtocolError(f"a worker's address was refused: {error}") from None
    return WorkerAddresses(tuple(dict.fromkeys(own)), tuple(dict.fromkeys(claims)), seen)


def may_dial(host: str, seen: str) -> bool:
    """Whether the broker may dial `host` to verify a claim of a worker that connects from `seen`.

    A private host only if the worker connects from a private one: otherwise a remote worker could make the
    broker probe the broker's own network.
    """
    address, worker_host = _parse_host(host), _parse_host(seen)
    if address is None or worker_host is None or _is_unusable(address) or address.is_loopback:
        return False
    return address.is_global or not worker_host.is_global


def _is_near(claim: str, seen: str, reader: str) -> bool:
    """Whether a claim lies in the reader's own network, where it cannot harm others."""
    address, reader_host = _parse_host(parse_address(claim)[0]), _parse_host(reader)
    if address is None or reader_host is None or _is_unusable(address):
        return False
    if address.is_global:
        return _is_one_network(address, reader_host)
    worker_host = _parse_host(seen)
    is_one = worker_host is not None and _is_one_network(worker_host, reader_host)
    return is_one and (reader_host.is_loopback or not address.is_loopback)


def _is_reachable_from(address: str, reader: str) -> bool:
    """Whether an address means the same host to this reader; a loopback does so on one machine only."""
    host, reader_host = _parse_host(parse_address(address)[0]), _parse_host(reader)
    return host is None or not host.is_loopback or reader_host is None or reader_host.is_loopback


def _is_one_network(a: _Host, b: _Host) -> bool:
    """Whether the broker sees both in one place: at one address, in one IPv6 network, or on its machine."""
    if a.is_loopback and b.is_loopback:
        return True
    is_ipv6 = isinstance(a, ipaddress.IPv6Address) and isinstance(b, ipaddress.IPv6Address)
    if is_ipv6 and not (a in _TRANSLATED or b in _TRANSLATED):
        return int(a) >> (128 - _SITE_BITS) == int(b) >> (128 - _SITE_BITS)
    return a == b


def _is_unusable(address: _Host) -> bool:
    return address.is_multicast or address.is_unspecified or address.is_link_local


def _parse_host(host: str) -> _Host | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a name
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address  # `ipaddress` knows no loopback in the mapped form

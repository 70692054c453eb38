"""Under which addresses a listener may be found from elsewhere."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from farflung.protocol.fields import MAXIMUM_ADDRESSES
from farflung.transport.addresses import EVERY_INTERFACE, format_address, parse_address


def advertised(listening: str, route: str, hosts: Iterable[str]) -> list[str]:
    """The addresses to tell peers, best first, at most as many as a message may hold.

    Parameters
    ----------
    listening
        HOST:PORT of the listener. Only one on every interface can be found elsewhere than there.
    route
        This end of the connection to the broker (HOST:PORT): on its network there may be others. Or nothing.
    hosts
        Every address of this machine.
    """
    host, port = parse_address(listening)
    if host not in EVERY_INTERFACE:
        return [listening]
    found = [format_address(parse_address(route)[0], port)] if route else []
    found += [format_address(one, port) for one in hosts if _leads_here(one, host)]
    seen_by_the_broker = format_address("0.0.0.0", port)  # who fills in what it sees
    others = [address for address in dict.fromkeys(found) if address != seen_by_the_broker]
    return [*others[: MAXIMUM_ADDRESSES - 1], seen_by_the_broker]


def dialled_at(listening: str, hosts: Iterable[str]) -> list[str]:
    """The addresses under which a person may tell others to dial a listener: IPv4 first, never none.

    Parameters are as `advertised` has them. A machine without a network has its loopback only.
    """
    host, port = parse_address(listening)
    if host not in EVERY_INTERFACE:
        return [listening]
    found = [format_address(one, port) for one in hosts if _leads_here(one, host)]
    return sorted(dict.fromkeys(found), key=lambda one: one.startswith("[")) or [f"127.0.0.1:{port}"]


def own_hosts() -> list[str]:
    """Every IPv6 and IPv4 address of this machine's interfaces."""
    import psutil

    entries = [entry for interface in psutil.net_if_addrs().values() for entry in interface]
    return [entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]


def _leads_here(text: str, listening_host: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:  # an IPv6 address with a zone is no use to others
        return False
    heard = address.version == 4 or listening_host == "::"
    return heard and not (address.is_loopback or address.is_link_local or address.is_unspecified)

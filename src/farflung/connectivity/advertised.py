"""The addresses under which other machines can dial a listener."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from farflung.protocol.fields import MAXIMUM_ADDRESSES
from farflung.transport.net.addresses import EVERY_INTERFACE, format_address, parse_address


def advertised(listening: str, route: str, hosts: Iterable[str]) -> list[str]:
    """The addresses to send to peers, best first, at most as many as a message may hold.

    Parameters
    ----------
    listening
        HOST:PORT of the listener. Other addresses exist only if it listens on every interface.
    route
        The local address (HOST:PORT) of the connection to the broker, whose network peers may share; or
        empty.
    hosts
        All addresses of this machine.
    """
    host, port = parse_address(listening)
    if host not in EVERY_INTERFACE:
        return [listening]
    found = [format_address(parse_address(route)[0], port)] if route else []
    found += [format_address(one, port) for one in hosts if _leads_here(one, host)]
    seen_by_the_broker = format_address("0.0.0.0", port)  # the broker fills in the host
    others = [address for address in dict.fromkeys(found) if address != seen_by_the_broker]
    return [*others[: MAXIMUM_ADDRESSES - 1], seen_by_the_broker]


def dialled_at(listening: str, hosts: Iterable[str]) -> list[str]:
    """The addresses of a listener to show to a user: IPv4 first, never empty.

    The parameters are those of `advertised`. A machine without a network has only its loopback.
    """
    host, port = parse_address(listening)
    if host not in EVERY_INTERFACE:
        return [listening]
    found = [format_address(one, port) for one in hosts if _leads_here(one, host)]
    return sorted(dict.fromkeys(found), key=lambda one: one.startswith("[")) or [f"127.0.0.1:{port}"]


def own_hosts() -> list[str]:
    """All IPv6 and IPv4 addresses of this machine's interfaces."""
    import psutil

    entries = [entry for interface in psutil.net_if_addrs().values() for entry in interface]
    return [entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]


def _leads_here(text: str, listening_host: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:  # an IPv6 address with a zone is useless to others
        return False
    is_listened_on = address.version == 4 or listening_host == "::"
    return is_listened_on and not (address.is_loopback or address.is_link_local or address.is_unspecified)

"""HOST:PORT, the form in which all addresses are written; IPv6 hosts are in brackets.

A broker that another machine may take over has several, separated by commas.
"""

from __future__ import annotations

import ipaddress

from farflung.errors import ConnectionFailed

DEFAULT_PORT = 7700
MOST_PORT = 65535
MOST_BROKER_ADDRESSES = 8
EVERY_INTERFACE = ("0.0.0.0", "::")


def parse_address(text: str) -> tuple[str, int]:
    """Split HOST:PORT or [IPV6]:PORT into host and port; the default port is 7700.

    Raises
    ------
    ConnectionFailed
        The text is not such an address, or there is no such port.
    """
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    is_number = port.isascii() and port.isdigit()
    labels = host.split(".") if not bracketed else []
    if not host or not is_number or bracketed != (":" in host) or any(not 0 < len(x) < 64 for x in labels):
        raise ConnectionFailed(
            f"expected HOST:PORT or [IPV6]:PORT, found {text[:100]!r}: write it like broker.example:7700"
        )
    if len(port) > 5 or int(port) > MOST_PORT:
        raise ConnectionFailed(
            f"the port in {text[:100]!r} must be 1 to {MOST_PORT} (to listen also 0, which picks a free one)"
        )
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """Write host and port as `parse_address` reads them; IPv4-mapped IPv6 is written as IPv4."""
    plain, _, _ = host.partition("%")
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        return f"{host}:{port}"
    if isinstance(address, ipaddress.IPv4Address):
        return f"{plain}:{port}"
    return f"{address.ipv4_mapped}:{port}" if address.ipv4_mapped else f"[{host}]:{port}"


def parse_addresses(text: str) -> list[str]:
    """Split HOST:PORT,HOST2:PORT2, the addresses of one broker, each with its port written out.

    Raises
    ------
    ConnectionFailed
        One of them is no address, or there are too many.
    """
    addresses = [format_address(*parse_address(one.strip())) for one in text.split(",")]
    if len(addresses) > MOST_BROKER_ADDRESSES:
        raise ConnectionFailed(f"expected at most {MOST_BROKER_ADDRESSES} addresses, found {len(addresses)}")
    return list(dict.fromkeys(addresses))


def is_loopback(host: str) -> bool:
    """Whether an address leads only to the machine itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback

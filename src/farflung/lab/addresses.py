"""The addresses of a lab, which exist in its namespaces only. A node's number, from 1, fixes its own."""

from __future__ import annotations

from farflung.lab.spec import MAX_NODES

PREFIX_BITS = 20
PREFIX_BITS_6 = 16  # on-link for all of fd99::/16, the homes behind routers included
HOME_ADDRESS = "192.168.1.2"  # of every node behind NAT: homes look alike
HOME_GATEWAY = "192.168.1.1"
HOME_PREFIX_BITS = 24
HOME_GATEWAY_6 = "fe80::1"
LAST_NUMBER = MAX_NODES


def ipv4(number: int) -> str:
    """On the lab's internet."""
    return f"10.99.{number >> 8}.{number & 255}"


def ipv6(number: int) -> str:
    """On the lab's internet, of a node that no router stands before, or of the router."""
    return f"fd99::{number:x}"


def home_ipv6(number: int) -> str:
    """Of a node behind a router: global, since homes have no NAT over IPv6, only a firewall."""
    return f"fd99:1:{number:x}::2"

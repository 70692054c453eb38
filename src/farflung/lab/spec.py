"""What a lab consists of: nodes, links of each ordered pair, and addresses. Data only, valid by construction.

A node's number, from 1, determines its addresses, which exist only in the lab's namespaces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from farflung.errors import LabError
from farflung.plans.topology import LEAST_MBPS

MAX_NODES = 4094  # addresses of 10.99.0.0/20
MAX_MBPS = 100_000.0
MAX_DELAY_MS = 10_000.0
MAX_QUEUE_MS = 60_000.0
DEFAULT_QUEUE_MS = 200.0
MTU_RANGE = (1280, 9000)  # from the minimum of IPv6 to a jumbo frame
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def _check_rate(name: str, mbps: float | None) -> None:
    if mbps is not None and not LEAST_MBPS <= mbps <= MAX_MBPS:
        raise LabError(f"{name} must be from {LEAST_MBPS:g} to {MAX_MBPS:g} Mbit/s, found {mbps:g}")


def _check_queue(queue_ms: float | None) -> None:
    if queue_ms is not None and not 0 < queue_ms <= MAX_QUEUE_MS:
        raise LabError(f"queue_ms must be above 0 and at most {MAX_QUEUE_MS:g}, found {queue_ms:g}")


def _check_range(name: str, value: float, most: float) -> None:
    if not (math.isfinite(value) and 0 <= value <= most):
        raise LabError(f"{name} must be from 0 to {most:g}, found {value:g}")


@dataclass(frozen=True)
class LinkSettings:
    """How packets travel from one node to another.

    Parameters
    ----------
    bandwidth_mbps
        Rate of the pair alone, in Mbit/s; None: only the access lines of its two ends limit it.
    latency_ms
        One-way latency.
    jitter_ms
        Additional delay of up to this, uniformly distributed; packets of a pair stay in order.
    loss
        Probability that a packet is lost, 0 to 1.
    queue_ms
        Length of the queue before the rate limit, as time; further packets are dropped. None: 200 ms, or
        twice the latency if that is more.

    Raises
    ------
    LabError
        A value is negative, not finite, or too large.
    """

    bandwidth_mbps: float | None = None
    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    queue_ms: float | None = None

    def __post_init__(self) -> None:
        _check_rate("bandwidth_mbps", self.bandwidth_mbps)
        _check_range("latency_ms", self.latency_ms, MAX_DELAY_MS)
        _check_range("jitter_ms", self.jitter_ms, MAX_DELAY_MS)
        _check_range("loss", self.loss, 1.0)
        _check_queue(self.queue_ms)

    @property
    def queue_limit_ms(self) -> float:
        """The length of the queue, with the default filled in."""
        return max(DEFAULT_QUEUE_MS, 2 * self.latency_ms) if self.queue_ms is None else self.queue_ms

    def words(self) -> str:
        """All settings as one line of text, named like the options of `farflung lab set`."""
        rate = "no rate of its own" if self.bandwidth_mbps is None else f"{self.bandwidth_mbps:g} Mbit/s"
        text = f"{rate}, {self.latency_ms:g} ms"
        text += f", jitter {self.jitter_ms:g} ms" if self.jitter_ms else ""
        text += f", loss {self.loss:g}" if self.loss else ""
        return f"{text}, queue {self.queue_limit_ms:g} ms"


HOME_LAN = LinkSettings(bandwidth_mbps=1000.0, latency_ms=0.2)  # between nodes that share an access line


@dataclass(frozen=True)
class Node:
    """One machine of the lab.

    Parameters
    ----------
    name
        Letters, digits, `_`, `.` and `-`.
    up_mbps, down_mbps
        Rates of its access line, shared by all its links; None: no limit.
    behind_nat
        It is behind a router that masquerades it over IPv4, and rejects unsolicited packets over IPv4 and
        IPv6.
    shares_line_with
        It is in the home of that node: it uses the same access line and links to others, and reaches all
        nodes of that home at LAN speed (`HOME_LAN`).
    queue_ms
        Queue before each direction of its access line; None: 200 ms.

    Raises
    ------
    LabError
        The name is invalid, a rate is out of range, or an access line is both its own and shared.
    """

    name: str
    up_mbps: float | None = None
    down_mbps: float | None = None
    behind_nat: bool = False
    shares_line_with: str | None = None
    queue_ms: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LabError(
                f"{self.name[:70]!r} cannot name a node: use up to 63 letters, digits, '_', '.' and '-'"
            )
        _check_rate(f"up_mbps of {self.name}", self.up_mbps)
        _check_rate(f"down_mbps of {self.name}", self.down_mbps)
        _check_queue(self.queue_ms)
        if self.shares_line_with is not None and (self.up_mbps, self.down_mbps) != (None, None):
            raise LabError(
                f"{self.name} shares the access line of {self.shares_line_with}:"
                " leave out its up_mbps and down_mbps"
            )


@dataclass(frozen=True)
class LabSpec:
    """A lab: nodes, and settings by (source, target).

    A pair that is not in `links` has the settings of the homes of its ends, `HOME_LAN` within one home, or
    else no limit and no delay.

    Parameters
    ----------
    segmentation_offload
        Pass packets of up to 64 KB through the switch, which counts them as the TCP segments they contain.
        Several times faster, but queues and losses act on whole packets. For links above 200 Mbit/s.
    mtu
        Largest packet, in bytes.

    Raises
    ------
    LabError
        Names collide, a link or an access line names an unknown node, or there are more nodes than addresses.
    """

    nodes: tuple[Node, ...]
    links: Mapping[tuple[str, str], LinkSettings] = field(default_factory=dict)
    segmentation_offload: bool = False
    mtu: int = 1500

    def __post_init__(self) -> None:
        if not self.nodes:
            raise LabError("a lab needs at least one node, found none")
        if len(self.nodes) > MAX_NODES:
            raise LabError(f"a lab has addresses for {MAX_NODES} nodes, {len(self.nodes)} were asked for")
        if not MTU_RANGE[0] <= self.mtu <= MTU_RANGE[1]:
            raise LabError(f"mtu must be from {MTU_RANGE[0]} to {MTU_RANGE[1]} bytes, found {self.mtu}")
        by_name = {node.name: node for node in self.nodes}
        if len(by_name) < len(self.nodes):
            names = [node.name for node in self.nodes]
            raise LabError(f"two nodes are called {next(name for name in names if names.count(name) > 1)}")
        for node in self.nodes:
            _check_owner(node, by_name)
        for source, target in self.links:
            if source not in by_name or target not in by_name or source == target:
                raise LabError(f"a link goes from one node of the lab to another, found {source} -> {target}")


def _check_owner(node: Node, by_name: Mapping[str, Node]) -> None:
    if node.shares_line_with is None:
        return
    owner = by_name.get(node.shares_line_with)
    if owner is None or owner.shares_line_with is not None:
        found = "no node" if owner is None else f"a node that shares that of {owner.shares_line_with}"
        raise LabError(
            f"{node.name} shares the access line of {node.shares_line_with}, which is {found}:"
            " name a node with its own access line"
        )


PREFIX_BITS = 20
PREFIX_BITS_6 = 16  # on-link for all of fd99::/16, the homes behind routers included
HOME_ADDRESS = "192.168.1.2"  # of every node behind NAT: homes look alike
HOME_GATEWAY = "192.168.1.1"
HOME_PREFIX_BITS = 24
HOME_GATEWAY_6 = "fe80::1"
LAST_NUMBER = MAX_NODES


def ipv4(number: int) -> str:
    """IPv4 address on the lab's internet."""
    return f"10.99.{number >> 8}.{number & 255}"


def ipv6(number: int) -> str:
    """IPv6 address on the lab's internet, of a node without a router or of the router."""
    return f"fd99::{number:x}"


def home_ipv6(number: int) -> str:
    """IPv6 address of a node behind a router: global, since homes have only a firewall over IPv6, no NAT."""
    return f"fd99:1:{number:x}::2"

"""The switch's tables: the address of each node, and the channels between nodes. No I/O."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from farflung.errors import LabError
from farflung.lab import spec
from farflung.lab.spec import DEFAULT_QUEUE_MS, HOME_LAN, LabSpec, LinkSettings, Node
from farflung.lab.switch.shaper import Channel, Path, Pipe
from farflung.text import and_more

_UNLIMITED = LinkSettings()


class Home:
    """A home's access line, which one or several nodes use; a rate of None means no limit."""

    def __init__(self, owner: Node) -> None:
        self.owner = owner
        self.up = Pipe(owner.up_mbps, self._queue_ms)
        self.down = Pipe(owner.down_mbps, self._queue_ms)

    def change(self, owner: Node) -> None:
        """Change the access line for packets that arrive from now on."""
        self.owner = owner
        self.up.change(owner.up_mbps, self._queue_ms)
        self.down.change(owner.down_mbps, self._queue_ms)

    @property
    def _queue_ms(self) -> float:
        return DEFAULT_QUEUE_MS if self.owner.queue_ms is None else self.owner.queue_ms


class Fabric:
    """Channels between numbered ports, created with their first packet.

    Ports are the nodes in the order of the spec; `numbers[port]` determines a port's addresses.
    `shortest_latency` is the shortest latency of any link in the spec so far, in seconds.
    """

    def __init__(self, spec: LabSpec) -> None:
        self.spec = spec
        self.shortest_latency = min((link.latency_ms for link in spec.links.values()), default=0.0) / 1e3
        self._port_of = {node.name: port for port, node in enumerate(spec.nodes)}
        self._homes = {node.name: Home(node) for node in spec.nodes if node.shares_line_with is None}
        self._paths: dict[tuple[str, str], Path] = {}
        self._channels: dict[tuple[int, int], Channel] = {}
        self.numbers = [port + 1 for port in range(len(spec.nodes))]
        self._next_number = len(spec.nodes) + 1
        self._ports: dict[bytes, int] = {}
        self.routes: list[dict[bytes, Channel]] = [{} for _ in spec.nodes]  # per source, by target address
        for port in range(len(spec.nodes)):
            self._publish(port)

    def port(self, name: str) -> int:
        """The port of a node. Raises `LabError` if there is no such node."""
        if name not in self._port_of:
            raise LabError(
                f"no node of this lab is called {name!r}; it has {and_more(list(self._port_of), 8)}"
            )
        return self._port_of[name]

    def route(self, source: int, address: bytes) -> Channel | None:
        """The channel to a packed IPv4 or IPv6 address; None if no node has it (multicast, say)."""
        target = self._ports.get(address)
        if target is None or target == source:
            return None
        channel = self._channel(source, target)
        self.routes[source][address] = channel
        return channel

    def channels(self) -> Iterator[Channel]:
        """The channels created so far."""
        return iter(self._channels.values())

    def settings(self, source: str, target: str) -> LinkSettings:
        """The current settings of a pair."""
        return self._pair(source, target).path.settings

    def set_link(self, source: str, target: str, settings: LinkSettings) -> None:
        """Change the path that the pair uses; nodes of the same homes use it too."""
        self._pair(source, target).path.change(settings)
        self.shortest_latency = min(self.shortest_latency, settings.latency_ms / 1e3)

    def line(self, name: str) -> Node:
        """The owner of the access line that a node uses, with its current rates."""
        return self._homes[self._home_name(self.port(name))].owner

    def set_line(self, line: Node) -> None:
        """Change the access line of a node that owns one, for all nodes that share it."""
        self._homes[line.name].change(line)

    def cut(self, first: str, second: str | None, is_cut: bool) -> list[tuple[str, str]]:
        """Cut or heal a pair, or without `second` a node and all others; returns the changed pairs."""
        changed = []
        port = self.port(first)
        others = range(len(self.numbers)) if second is None else [self._pair(first, second).target]
        for other in others:
            if other != port and self._channel(port, other).is_cut != is_cut:
                self._channel(port, other).is_cut = is_cut
                self._channel(other, port).is_cut = is_cut
                changed.append((first, self.spec.nodes[other].name))
        return changed

    def heal_all(self) -> list[tuple[str, str]]:
        """Undo all cuts; returns the pairs that were cut."""
        healed = []
        for channel in self._channels.values():
            if channel.is_cut and channel.source < channel.target:
                nodes = self.spec.nodes
                healed.append((nodes[channel.source].name, nodes[channel.target].name))
            channel.is_cut = False
        return healed

    def renumber(self, name: str) -> int:
        """Give a node addresses that no node had before, replacing the old ones; returns its number."""
        port = self.port(name)
        if self._next_number > spec.LAST_NUMBER:
            raise LabError(f"all {spec.LAST_NUMBER} addresses of this lab have been used")
        for address in _packed(self.spec.nodes[port], self.numbers[port]):
            del self._ports[address]
            for routes in self.routes:
                routes.pop(address, None)
        self.numbers[port] = self._next_number
        self._next_number += 1
        self._publish(port)
        return self.numbers[port]

    def _publish(self, port: int) -> None:
        for address in _packed(self.spec.nodes[port], self.numbers[port]):
            self._ports[address] = port

    def _home_name(self, port: int) -> str:
        node = self.spec.nodes[port]
        return node.shares_line_with or node.name

    def _pair(self, source: str, target: str) -> Channel:
        """The channel of two nodes by name."""
        ends = self.port(source), self.port(target)
        if source == target:
            raise LabError(f"a link goes from one node of the lab to another, found {source} -> {target}")
        return self._channel(*ends)

    def _channel(self, source: int, target: int) -> Channel:
        channel = self._channels.get((source, target))
        if channel is None:
            channel = self._channels[source, target] = self._new_channel(source, target)
        return channel

    def _new_channel(self, source: int, target: int) -> Channel:
        names = self.spec.nodes[source].name, self.spec.nodes[target].name
        homes = self._home_name(source), self._home_name(target)
        if homes[0] == homes[1]:
            return Channel(source, target, None, Path(self.spec.links.get(names, HOME_LAN)), None)
        up, down = self._homes[homes[0]].up, self._homes[homes[1]].down
        return Channel(source, target, up, self._path(names, homes), down)

    def _path(self, names: tuple[str, str], homes: tuple[str, str]) -> Path:
        """The pair's own path if the spec names it, else the path of their homes."""
        key = names if names in self.spec.links else homes
        if key not in self._paths:
            self._paths[key] = Path(self.spec.links.get(key, _UNLIMITED))
        return self._paths[key]


def _packed(node: Node, number: int) -> list[bytes]:
    """All addresses of a node's port; behind a router they include the router's IPv6 address."""
    packed = [
        socket.inet_pton(socket.AF_INET, spec.ipv4(number)),
        socket.inet_pton(socket.AF_INET6, spec.ipv6(number)),
    ]
    if node.behind_nat:
        packed.append(socket.inet_pton(socket.AF_INET6, spec.home_ipv6(number)))
    return packed

"""Commands in the network namespaces of a lab: each machine has an address of its own, and maybe a NAT."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import Command, Machines, Run, machines, train

from farflung.lab.network import Network
from farflung.lab.spec import LabSpec, LinkSettings, Node
from farflung.lab.switch.tun import NAMESPACES

STEPS = 5
LEASE_SECONDS = 8.0  # on a busy machine a worker that imports torch is silent for some
LINE = LinkSettings(bandwidth_mbps=100.0, latency_ms=5.0)


class Lab(Machines):
    """Each command runs in the node that has the name of its home."""

    listen = "[::]:0"
    lease_seconds = LEASE_SECONDS
    network: Network

    def prefix(self, home: str) -> list[str]:
        return self.network.command(home, [])

    def namespace(self, home: str) -> str:
        return str(NAMESPACES / self.network.namespace(home))


class Homes:
    """A broker on node `hub`, a submitter on node `desk`, workers on other nodes where they are asked for."""

    def __init__(self, on: Lab, network: Network, ipv6: bool) -> None:
        self.on = on
        self.network = network
        self._runs = 0
        on.network = network
        on.address = f"[{network.address6('hub')}]:7700" if ipv6 else f"{network.address('hub')}:7700"

    def broker(self, *arguments: str) -> Command:
        """The broker."""
        lease = f"{self.on.lease_seconds:g}"
        broker = self.on.start("hub", "broker", "--listen", "[::]:7700", "--lease", lease, *arguments)
        broker.says("listens on")
        return broker

    def worker(self, name: str, *arguments: str) -> Command:
        """A worker that is on its way to be idle."""
        token = self.on.token("worker")
        return self.on.start(name, "join", self.on.address, "--name", name, "--token", token, *arguments)

    def train(self, *on: str) -> Run:
        """Begin to train on these workers, one segment each in the order of their names."""
        token = [] if self._runs else ["--token", self.on.token("submitter")]
        where = ["--broker", self.on.address, "--on", ",".join(on), "--wait", *token]
        where += ["--scheduler", "equal-compute"]
        self._runs += 1
        return train(self.on, f"run-{self._runs}", "--steps", str(STEPS), *where)

    def paths(self) -> dict[tuple[str, str], str]:
        """How each holder last said that it reaches each peer; empty where it does not."""
        found = {}
        for view in self.on.status()["links"]:
            link = view["report"]["link"]
            found[view["holder"], view["report"]["peer"]] = link["path"] if link else ""
        return found

    def forget_ipv4(self) -> None:
        """Leave every node IPv6 only."""
        for node in self.network.nodes:
            flush = ["ip", "-4", "addr", "flush", "scope", "global"]
            assert self.network.popen(node, flush, stderr=subprocess.PIPE).wait() == 0


@contextmanager
def homes(
    folder: Path, *nodes: Node, ipv6: bool = False, line: LinkSettings = LINE, kind: type[Lab] = Lab
) -> Iterator[Homes]:
    """A lab of `hub`, `desk` and these nodes, with a `line` between any two, for one block."""
    whole = (Node("hub"), Node("desk"), *nodes)
    names = [node.name for node in whole]
    links = {(a, b): line for a in names for b in names if a != b}
    with Network(LabSpec(whole, links)) as network, machines(folder, kind) as on:
        yield Homes(on, network, ipv6)

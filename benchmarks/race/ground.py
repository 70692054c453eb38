"""The ground on which systems race: an emulated network, or this machine's own loopback without one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from farflung.lab.network import RunningLab
from farflung.lab.run.layout import SUBMITTER
from farflung.lab.switch.tun import INTERFACE
from farflung.plans import Topology

LOOPBACK = "loopback"
PORT = 29_500  # nothing else listens in the namespaces of a lab


class Reading(NamedTuple):
    """Counters at one moment: bytes of IP packets that were carried, CPU seconds of the racing processes."""

    wire_bytes: int
    cpu_seconds: float


class Lateness(NamedTuple):
    """How late the switch handed packets over; beyond 5 ms at the 99th percentile a leg is void."""

    p99_ms: float
    void: bool


class Ground(ABC):
    """Where ranks and workers run, what they call each other, and what is counted, for all systems alike.

    Attributes
    ----------
    name : The testbed.
    nodes : Ids of the places where a rank or a worker runs, in order.
    interface : What gloo binds to.
    """

    name: str
    nodes: list[str]
    interface: str

    @abstractmethod
    def command(self, node: str, argv: Sequence[str]) -> list[str]:
        """What runs `argv` in a node."""

    @abstractmethod
    def address(self, node: str) -> str:
        """IPv4 address of a node."""

    @abstractmethod
    def port(self) -> int:
        """A TCP port where the first node can listen."""

    @abstractmethod
    def read(self) -> Reading:
        """The counters now."""

    @abstractmethod
    def begin(self) -> None:
        """A leg begins."""

    @abstractmethod
    def lateness(self) -> Lateness:
        """Since it began."""


class LabGround(Ground):
    """A lab that runs; the switch counts the bytes."""

    def __init__(self, network: RunningLab, topology: Topology) -> None:
        self.network = network
        self.topology = topology
        self.name = topology.name
        self.nodes = topology.ids
        self.interface = INTERFACE

    def command(self, node: str, argv: Sequence[str]) -> list[str]:
        return self.network.command(node, argv)

    def address(self, node: str) -> str:
        return self.network.address(node)

    def port(self) -> int:
        return PORT

    def read(self) -> Reading:
        stats = self.network.stats()
        return Reading(sum(link.bytes for link in stats.links), self._cpu_seconds())

    def begin(self) -> None:
        self.network.stats(reset=True)

    def lateness(self) -> Lateness:
        stats = self.network.stats()
        return Lateness(stats.late_p99_ms, stats.void)

    def _cpu_seconds(self) -> float:
        """Of all processes in the namespaces of workers and submitter (a baseline has none there)."""
        namespaces = [self.network.namespace(node) for node in [*self.nodes, SUBMITTER]]
        return _ended_seconds() + sum(_family_seconds(pid) for name in namespaces for pid in _processes(name))


class LoopbackGround(Ground):
    """This machine's loopback interface: no emulation. Its counter sees other programs' traffic too."""

    def __init__(self, count: int) -> None:
        self.name = LOOPBACK
        self.nodes = [f"worker-{number}" for number in range(count)]
        self.interface = "lo"
        self._bound: socket.socket | None = None

    def command(self, node: str, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def address(self, node: str) -> str:
        return "127.0.0.1"

    def port(self) -> int:
        """Another one every time: what else runs on this machine, an earlier leg too, may hold any.

        It is bound until the next one is asked for: the first rank listens only once it has imported torch,
        and Linux gives to nobody else in the meantime what somebody has bound.
        """
        if self._bound is not None:
            self._bound.close()
        bound = self._bound = socket.socket()
        if sys.platform == "linux":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((self.address(self.nodes[0]), 0))
        port = int(bound.getsockname()[1])
        if sys.platform != "linux":  # elsewhere nobody else could listen there
            bound.close()
        return port

    def read(self) -> Reading:
        children = psutil.Process().children(recursive=True)
        carried = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        return Reading(carried, _ended_seconds() + sum(_family_seconds(child.pid) for child in children))

    def begin(self) -> None:
        """Nothing is emulated, so nothing can be late."""

    def lateness(self) -> Lateness:
        return Lateness(0.0, False)


def _processes(namespace: str) -> list[int]:
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True)
    return [int(line) for line in listed.stdout.split()]


def _ended_seconds() -> float:
    """Of children of this process who have ended, and of whom they had waited for."""
    own = os.times()
    return own.children_user + own.children_system


def _family_seconds(pid: int) -> float:
    """Of a process and of its children who have ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


def congestion_control() -> str:
    """What paces a connection that asks for nothing, as gloo's do."""
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    except OSError:
        return "unknown"

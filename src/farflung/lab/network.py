"""A lab from outside: started, reached, changed while it runs, and taken down."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgspec

from farflung.errors import LabError
from farflung.lab import addresses, control, namespaces, registry, tun
from farflung.lab.control import UNSET
from farflung.lab.spec import LabSpec, Node
from farflung.lab.stats import Stats
from farflung.lab.switch import Start, Started
from farflung.transport.timeouts import Timeouts

_Limit = float | None | msgspec.UnsetType
_Changed = float | msgspec.UnsetType


class RunningLab:
    """A lab that runs on this machine, in this process's charge or another's.

    Every method raises `LabError` if a node is not there, a value is impossible, or the lab has ended.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._client = control.Client(registry.socket_path(name))
        self._nodes = self._ask_nodes(control.AskNodes())

    @property
    def nodes(self) -> list[str]:
        """Names, in the order of the spec."""
        return list(self._nodes)

    def address(self, node: str) -> str:
        """IPv4 address under which others see a node: behind NAT, its router's."""
        return addresses.ipv4(self._node(node).number)

    def address6(self, node: str) -> str:
        """IPv6 address of a node: its own behind NAT too, where a firewall stands before it."""
        state = self._node(node)
        return addresses.home_ipv6(state.number) if state.behind_nat else addresses.ipv6(state.number)

    def local_address(self, node: str) -> str:
        """IPv4 address that a node's own interface has: behind NAT, a private one."""
        return addresses.HOME_ADDRESS if self._node(node).behind_nat else self.address(node)

    def namespace(self, node: str) -> str:
        """The network namespace of a node, as `ip netns` names it."""
        return self._node(node).namespace

    def command(self, node: str, argv: Sequence[str]) -> list[str]:
        """What runs `argv` in a node. It replaces itself by `argv`: signals reach that."""
        return ["ip", "netns", "exec", self.namespace(node), *argv]

    def popen(self, node: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start `argv` in a node; `options` as of `subprocess.Popen`. It is ended with the lab."""
        return subprocess.Popen(self.command(node, argv), **options)

    def set(
        self,
        source: str,
        target: str,
        *,
        bandwidth_mbps: _Limit = UNSET,
        latency_ms: _Changed = UNSET,
        jitter_ms: _Changed = UNSET,
        loss: _Changed = UNSET,
        queue_ms: _Limit = UNSET,
    ) -> None:
        """Change one direction of a pair, for packets that leave from now on. Pairs of its homes share it."""
        self._ask(control.SetLink(source, target, bandwidth_mbps, latency_ms, jitter_ms, loss, queue_ms))

    def set_node(self, node: str, *, up_mbps: _Limit = UNSET, down_mbps: _Limit = UNSET) -> None:
        """Change a node's line, for all who share it."""
        self._ask(control.SetLine(node, up_mbps, down_mbps))

    def cut(self, first: str, second: str | None = None) -> None:
        """Let nothing pass between two nodes, or between one and all others; what is on its way is lost."""
        self._ask(control.Cut(first, second))

    def heal(self, first: str | None = None, second: str | None = None) -> None:
        """Undo cuts: of a pair, of a node, or all."""
        self._ask(control.Heal(first, second))

    def readdress(self, node: str) -> str:
        """Give a node new addresses, as a provider or another network would; its new IPv4 address."""
        before = self._node(node)
        self._nodes = self._ask_nodes(control.Renumber(node))
        after = self._node(node)
        named = Node(node, behind_nat=after.behind_nat)
        namespaces.readdress(self.name, named, before.number, after.number)
        return self.address(node)

    def stats(self, *, reset: bool = False) -> Stats:
        """Counts since the start or the last reset; with `reset` they begin anew after this."""
        answer = self._ask(control.AskStats(reset))
        assert isinstance(answer, control.Told)
        return answer.stats

    def down(self) -> None:
        """End the lab and what runs in it, and wait until all is gone."""
        self._ask(control.Stop())
        self._client.wait_for_end()

    def close(self) -> None:
        """Let go of a lab in another's charge."""
        self._client.close()

    def _node(self, name: str) -> control.NodeState:
        if name not in self._nodes:
            raise LabError(f"no node of lab {self.name} is called {name!r}: it has {', '.join(self._nodes)}")
        return self._nodes[name]

    def _ask_nodes(self, request: control.AskNodes | control.Renumber) -> dict[str, control.NodeState]:
        answer = self._ask(request)
        assert isinstance(answer, control.Nodes)
        return {node.name: node for node in answer.nodes}

    def _ask(self, request: control.Request) -> control.Answer:
        with self._lock:
            return self._client.ask(request)


class Network(RunningLab):
    """A lab for as long as one block lasts, and no longer than this process, however it ends.

    Several may run at once. They need root, Linux and /dev/net/tun, and `nft` for nodes behind NAT.

        with Network(LabSpec(nodes=(Node("a"), Node("b")))) as network:
            network.popen("a", ["ping", "-c1", network.address("b")]).wait()

    Parameters
    ----------
    name
        By which `farflung lab` commands find it; by default a random one.

    Raises
    ------
    LabError
        On entering the block: this machine cannot carry a lab, or one of this name runs already.
    """

    def __init__(self, spec: LabSpec, name: str | None = None) -> None:
        self._spec = spec
        self.name = secrets.token_hex(4) if name is None else name
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Network:
        check_machine(needs_nft=any(node.behind_nat for node in self._spec.nodes))
        registry.check_name(self.name)
        self._process = _start_switch(Start(self.name, self._spec, os.getpid()))
        try:
            super().__init__(self.name)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._end()

    def wait(self) -> None:
        """Until somebody else takes the lab down. Raises `LabError` if its switch was killed instead."""
        assert self._process is not None
        if self._process.wait() != 0:
            registry.clean_stale()
            raise LabError(f"the switch of lab {self.name} was killed; what it left is removed")

    def _end(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(Timeouts().stop_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            registry.clean_stale()


def check_machine(needs_nft: bool = False) -> None:
    """Raises `LabError`, with what helps, unless this machine can carry a lab."""
    if sys.platform != "linux":
        raise LabError(f"the lab needs Linux (network namespaces and TUN devices), this is {sys.platform}")
    if os.geteuid() != 0:
        raise LabError("the lab needs root for its network namespaces: run this command with sudo")
    if not tun.DEVICE.exists():
        raise LabError(f"the lab needs {tun.DEVICE}, which is not there: modprobe tun")
    if shutil.which("ip") is None:
        raise LabError("the lab needs the ip command, which is not installed: apt install iproute2")
    if needs_nft and shutil.which("nft") is None:
        raise LabError("a node behind NAT needs nft, which is not installed: apt install nftables")


def _start_switch(start: Start) -> subprocess.Popen[bytes]:
    """The switch's process, once its lab is up. It has a session of its own: Ctrl-C reaches us alone."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "farflung.lab.switch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.msgpack.encode(start))
        process.stdin.close()
        line = process.stdout.readline()
        started = msgspec.json.decode(line, type=Started) if line else Started("the lab's switch has died")
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        process.stdout.close()
    if started.error:
        process.wait()
        raise LabError(started.error)
    return process


def find(name: str = registry.DEFAULT_NAME) -> RunningLab:
    """The lab of this name. Raises `LabError` if none runs."""
    registry.check_name(name)
    if not registry.socket_path(name).exists():
        raise LabError(f"no lab called {name} runs: farflung lab up TOPOLOGY")
    return RunningLab(name)

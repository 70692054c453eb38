"""`RunningLab`: reach a running lab from any process, and change it while it runs."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from farflung.errors import LabError
from farflung.lab import registry, spec
from farflung.lab.machine import check_machine
from farflung.lab.spec import Node
from farflung.lab.switch import control, namespaces
from farflung.lab.switch.stats import Stats

_Limit = float | None | msgspec.UnsetType
_Changed = float | msgspec.UnsetType


class RunningLab:
    """A lab that runs on this machine, owned by this process or another.

    Every method raises `LabError` if a node does not exist, a value is out of range, or the lab has ended.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._client = control.Client(registry.socket_path(name))
        self._nodes = self._ask_nodes(control.AskNodes())

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes, in the order of the spec."""
        return list(self._nodes)

    def address(self, node: str) -> str:
        """IPv4 address under which others see a node; behind NAT, its router's."""
        return spec.ipv4(self._node(node).number)

    def address6(self, node: str) -> str:
        """IPv6 address of a node; its own even behind NAT, where a firewall protects it."""
        state = self._node(node)
        return spec.home_ipv6(state.number) if state.behind_nat else spec.ipv6(state.number)

    def local_address(self, node: str) -> str:
        """IPv4 address of a node's interface; behind NAT, a private one."""
        return spec.HOME_ADDRESS if self._node(node).behind_nat else self.address(node)

    def namespace(self, node: str) -> str:
        """The network namespace of a node, as `ip netns` names it."""
        return self._node(node).namespace

    def command(self, node: str, argv: Sequence[str]) -> list[str]:
        """A command that runs `argv` in a node; it replaces itself by `argv`, so signals reach that."""
        return ["ip", "netns", "exec", self.namespace(node), *argv]

    def popen(self, node: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start `argv` in a node with options of `subprocess.Popen`; the process ends with the lab."""
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
    ) -> str:
        """Change one direction of a pair, for packets sent from now on; returns the change as text.

        All pairs of the same two homes share these settings.
        """
        return self._change(
            control.SetLink(source, target, bandwidth_mbps, latency_ms, jitter_ms, loss, queue_ms)
        )

    def set_node(self, node: str, *, up_mbps: _Limit = UNSET, down_mbps: _Limit = UNSET) -> str:
        """Change a node's access line, for all nodes that share it; returns the change as text."""
        return self._change(control.SetLine(node, up_mbps, down_mbps))

    def cut(self, first: str, second: str | None = None) -> tuple[tuple[str, str], ...]:
        """Drop all packets between two nodes, or between one and all others, including those in flight.

        Returns the pairs that were not cut before.
        """
        return self._ask_pairs(control.Cut(first, second))

    def heal(self, first: str | None = None, second: str | None = None) -> tuple[tuple[str, str], ...]:
        """Undo cuts of a pair, of a node, or all; returns the pairs that were cut."""
        return self._ask_pairs(control.Heal(first, second))

    def readdress(self, node: str) -> str:
        """Give a node new addresses, as a provider might; returns its new IPv4 address."""
        before = self._node(node)
        self._nodes = self._ask_nodes(control.Renumber(node))
        after = self._node(node)
        named = Node(node, behind_nat=after.behind_nat)
        namespaces.readdress(self.name, named, before.number, after.number)
        return self.address(node)

    def stats(self, *, reset: bool = False) -> Stats:
        """Counts since the start or the last reset; with `reset`, set them to zero afterwards."""
        answer = self._ask(control.AskStats(reset))
        assert isinstance(answer, control.StatsAnswer)
        return answer.stats

    def down(self) -> None:
        """End the lab and all processes in it, and wait until everything is removed."""
        self._ask(control.Stop())
        self._client.wait_for_end()

    def close(self) -> None:
        """Disconnect from a lab that another process owns."""
        self._client.close()

    def _node(self, name: str) -> control.NodeState:
        if name not in self._nodes:
            raise LabError(f"no node of lab {self.name} is called {name!r}: it has {', '.join(self._nodes)}")
        return self._nodes[name]

    def _change(self, request: control.SetLink | control.SetLine) -> str:
        answer = self._ask(request)
        assert isinstance(answer, control.Changed)
        return f"{answer.what}: {answer.now} (was {answer.was})"

    def _ask_pairs(self, request: control.Cut | control.Heal) -> tuple[tuple[str, str], ...]:
        answer = self._ask(request)
        assert isinstance(answer, control.Pairs)
        return answer.pairs

    def _ask_nodes(self, request: control.AskNodes | control.Renumber) -> dict[str, control.NodeState]:
        answer = self._ask(request)
        assert isinstance(answer, control.Nodes)
        return {node.name: node for node in answer.nodes}

    def _ask(self, request: control.Request) -> control.Answer:
        with self._lock:
            return self._client.ask(request)


def find(name: str | None = None) -> RunningLab:
    """The lab of this name; without a name, the one called `lab`, or the only one that runs.

    Raises `LabError` if there is none, or this process may not use labs.
    """
    check_machine()
    name = _default_name() if name is None else name
    registry.check_name(name)
    if not registry.socket_path(name).exists():
        names = ", ".join(registry.names())
        others = f"; there {'are' if ',' in names else 'is'} {names} (--name)" if names else ""
        raise LabError(f"no lab called {name} runs{others or ': farflung lab up TOPOLOGY'}")
    return RunningLab(name)


def _default_name() -> str:
    names = registry.names()
    return names[0] if len(names) == 1 else registry.DEFAULT_NAME

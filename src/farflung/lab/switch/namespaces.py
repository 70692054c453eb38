"""Create a lab's network namespaces, configure them, and remove them with the processes in them.

The host's own network is not changed: TUN devices are created inside namespaces, and veth pairs between two.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from farflung.errors import LabError
from farflung.lab import spec
from farflung.lab.spec import Node
from farflung.lab.switch.tun import INTERFACE, NAMESPACES, inside
from farflung.transport.timeouts import Timeouts

LOOK_SECONDS = 0.02


class ProcessReaper:
    """Ends the processes in some namespaces: SIGTERM to each once, then SIGKILL to those that remain.

    It neither waits nor sleeps: the caller polls it until all `are_gone`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        found = [(NAMESPACES / name).stat() for name in names if (NAMESPACES / name).exists()]
        self._namespaces = {(status.st_dev, status.st_ino) for status in found}
        self._deadline = time.monotonic() + Timeouts().stop_seconds
        self._terminated: set[int] = set()  # a second SIGTERM would interrupt their cleanup

    def are_gone(self) -> bool:
        """Send SIGTERM to new processes and kill late ones; returns whether there were none."""
        running = self._running()
        late = time.monotonic() > self._deadline
        for process in running:
            if late or process not in self._terminated:
                self._terminated.add(process)
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL if late else signal.SIGTERM)
        return not running

    def _running(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir() if self._namespaces else ():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    status = (entry / "ns/net").stat()
                    if (status.st_dev, status.st_ino) in self._namespaces:
                        found.append(int(entry.name))
        return found


PREFIX = "farflung-"
HOME_INTERFACE = "lan0"
QUEUE_PACKETS = 1000  # before the switch reads them; shorter than any drop-tail queue of the lab

# TCP settings of each namespace, so that results do not depend on the host's: buffers for 1 Gbit/s times
# 100 ms, and no metrics of earlier connections.
TCP_SETTINGS = {
    "tcp_rmem": "4096 131072 33554432",
    "tcp_wmem": "4096 65536 33554432",
    "tcp_no_metrics_save": "1",
}


def name_of(lab: str, node: str) -> str:
    """The namespace in which a node's programs run."""
    return f"{PREFIX}{lab}-{node}"


def router_of(lab: str, node: str) -> str:
    """The namespace of the router before a node behind NAT; no node's name holds a `+`."""
    return f"{name_of(lab, node)}+router"


def device_of(lab: str, node: Node) -> str:
    """The namespace in which a node's TUN device is: behind NAT its router's."""
    return router_of(lab, node.name) if node.behind_nat else name_of(lab, node.name)


def all_of(lab: str, nodes: Iterable[Node]) -> list[str]:
    """Every namespace that the lab needs."""
    found = []
    for node in nodes:
        found += [name_of(lab, node.name)] + ([router_of(lab, node.name)] if node.behind_nat else [])
    return found


def create(names: Sequence[str]) -> None:
    """Create empty namespaces. Raises `LabError` if one cannot be created."""
    _ip(None, [f"netns add {name}" for name in names])


def remove(names: Sequence[str]) -> None:
    """End the processes in the namespaces, then remove those that exist."""
    present = [name for name in names if (NAMESPACES / name).exists()]
    reaper = ProcessReaper(present)
    while not reaper.are_gone():
        time.sleep(LOOK_SECONDS)
    if present:
        _ip(None, [f"netns del {name}" for name in present], force=True)


def configure(lab: str, node: Node, number: int, mtu: int) -> None:
    """Bring up a node with the addresses of `number`; its TUN device (behind NAT, its router's) exists."""
    outer = device_of(lab, node)
    for name in {outer, name_of(lab, node.name)}:
        _set_tcp(name)
    link = f"link set {INTERFACE} mtu {mtu} txqueuelen {QUEUE_PACKETS} up"
    _ip(outer, ["link set lo up", *_outer_addresses(number), link])
    if node.behind_nat:
        _configure_home(outer, name_of(lab, node.name), number, mtu)


def readdress(lab: str, node: Node, old: int, new: int) -> None:
    """Replace a running node's addresses; behind NAT, the router gets them and the node a new prefix."""
    inner, outer = name_of(lab, node.name), router_of(lab, node.name)
    if not node.behind_nat:
        _ip(inner, [line.replace("addr add", "addr del") for line in _outer_addresses(old)])
        _ip(inner, _outer_addresses(new))
        return
    _ip(outer, [line.replace("addr add", "addr del") for line in _outer_addresses(old)])
    _ip(outer, _outer_addresses(new))
    if _has_ipv6():
        _ip(inner, [f"addr del {spec.home_ipv6(old)}/64 dev {HOME_INTERFACE}"])
        _ip(outer, [f"route del {spec.home_ipv6(old)} dev {HOME_INTERFACE}"])
        _ip(inner, [f"addr add {spec.home_ipv6(new)}/64 dev {HOME_INTERFACE} nodad"])
        _ip(outer, [f"route add {spec.home_ipv6(new)} dev {HOME_INTERFACE}"])


def _outer_addresses(number: int) -> list[str]:
    lines = [f"addr add {spec.ipv4(number)}/{spec.PREFIX_BITS} dev {INTERFACE}"]
    if _has_ipv6():
        lines.append(f"addr add {spec.ipv6(number)}/{spec.PREFIX_BITS_6} dev {INTERFACE}")
    return lines


def _configure_home(router: str, inner: str, number: int, mtu: int) -> None:
    """Connect node and router by a veth pair, and make the router forward."""
    lan, bits = HOME_INTERFACE, spec.HOME_PREFIX_BITS
    up = f"link set {lan} mtu {mtu} up"
    at_router = [f"link add {lan} type veth peer name {lan} netns {inner}"]
    at_router += [f"addr add {spec.HOME_GATEWAY}/{bits} dev {lan}"]
    at_node = ["link set lo up", f"addr add {spec.HOME_ADDRESS}/{bits} dev {lan}"]
    if _has_ipv6():
        at_router.append(f"addr add {spec.HOME_GATEWAY_6}/64 dev {lan} nodad")
        at_node.append(f"addr add {spec.home_ipv6(number)}/64 dev {lan} nodad")
    _ip(router, [*at_router, up])
    _ip(inner, [*at_node, up, f"route add default via {spec.HOME_GATEWAY}"])
    if _has_ipv6():
        _ip(router, [f"route add {spec.home_ipv6(number)} dev {lan}"])
        _ip(inner, [f"route add default via {spec.HOME_GATEWAY_6} dev {lan}"])
    _become_router(router)


def _become_router(namespace: str) -> None:
    """Forward and masquerade packets from the home; let in only answers to them."""
    if shutil.which("nft") is None:
        raise LabError("a node behind NAT needs nft, which is not installed: apt install nftables")
    rules = f"""
    table inet farflung {{
      chain outbound {{
        type nat hook postrouting priority 100
        oifname "{INTERFACE}" meta nfproto ipv4 masquerade
      }}
      chain through {{
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        iifname "{HOME_INTERFACE}" accept
      }}
      chain inbound {{
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        iifname {{ "lo", "{HOME_INTERFACE}" }} accept
        meta l4proto {{ icmp, icmpv6 }} accept
      }}
    }}
    """
    _run(["ip", "netns", "exec", namespace, "nft", "-f", "-"], rules)
    with inside(namespace):
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        if _has_ipv6():
            Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("1")


def _set_tcp(namespace: str) -> None:
    with inside(namespace):
        for name, value in TCP_SETTINGS.items():
            with suppress(OSError):  # some kernels and containers do not allow setting it
                Path("/proc/sys/net/ipv4", name).write_text(value)


def _has_ipv6() -> bool:
    return Path("/proc/sys/net/ipv6").exists()


def _ip(namespace: str | None, lines: Sequence[str], force: bool = False) -> None:
    where = ["-n", namespace] if namespace else []
    _run(["ip", *(["-force"] if force else []), *where, "-batch", "-"], "\n".join(lines) + "\n", force)


def _run(command: Sequence[str], text: str, force: bool = False) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode and not force:
        words = " ".join((done.stderr or done.stdout).split())
        raise LabError(f"{' '.join(command)} failed: {words or f'exit code {done.returncode}'}")

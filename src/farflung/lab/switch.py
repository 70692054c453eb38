"""The process that is the network: it owns a lab's namespaces and carries packets between their TUN devices.

`python -m farflung.lab.switch` takes a `Start` on standard input, answers with a `Started` on standard
output, and runs until a signal, a request or the end of its parent tells it to stop. Then it removes all.
"""

from __future__ import annotations

import gc
import heapq
import os
import random
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from types import FrameType

import msgspec

from farflung.errors import LabError
from farflung.lab import control, namespaces, registry, tun
from farflung.lab.control_server import ControlServer
from farflung.lab.fabric import Fabric
from farflung.lab.shaper import FRAME_OVERHEAD, Channel
from farflung.lab.spec import LabSpec, LinkSettings
from farflung.lab.stats import VOID_ABOVE_MS, Lateness, LinkStats, Stats

BATCH_PACKETS = 64  # from one device before due packets are looked at again
SPIN_SECONDS = 20e-6  # below this, asking again is cheaper than sleeping
MOST_NAP_SECONDS = 250e-6  # between two looks at the devices: halves the cost of a packet at 100 Mbit/s
NAP_SHARE = 0.025  # of the shortest latency, so that no nap shows in a round trip
PRIORITY = 10
_Event = tuple[float, int, Channel, bytes, int, bool]
_OFFLOAD_HEADER = struct.Struct(
    "=BBHHHH"
)  # flags, kind, header bytes, segment bytes, checksum start and offset


class Start(msgspec.Struct, frozen=True):
    """What a switch is told: the lab's name, what it is, and which process it must not outlive."""

    name: str
    spec: LabSpec
    parent: int


class Started(msgspec.Struct, frozen=True):
    """What a switch answers: an empty `error` once the lab is up."""

    error: str = ""


class Switch:
    """Reads packets from `devices`, one a port, and writes each to its target's device when it is due."""

    def __init__(self, start: Start, devices: list[int], epoll: select.epoll) -> None:
        self._start, self._devices, self._epoll = start, devices, epoll
        self._server = ControlServer(registry.socket_path(start.name), epoll, self._answer)
        self._port_of = {descriptor: port for port, descriptor in enumerate(devices)}
        self._fabric = Fabric(start.spec)
        self._offset = tun.OFFLOAD_HEADER_BYTES if start.spec.segmentation_offload else 0
        self._largest = self._offset + (65_536 if self._offset else start.spec.mtu)
        self._heap: list[_Event] = []
        self._sequence = 0
        self._stopping = False
        self._real_time, self._priority = False, ""
        self._nap_seconds = 0.0
        self._choose_nap(min((link.latency_ms for link in start.spec.links.values()), default=0.0))
        self._reset()

    def run(self, parent: int) -> None:
        """Carry packets until a request to stop, or until `parent`, a process descriptor, ends."""
        epoll, server = self._epoll, self._server
        timer, armed = tun.Timer(), 0.0
        epoll.register(timer.descriptor, select.EPOLLIN | select.EPOLLET)
        epoll.register(parent, select.EPOLLIN)
        for descriptor in self._devices:
            epoll.register(descriptor, select.EPOLLIN)
        self._real_time, self._priority = _take_priority()
        heap, port_of, now = self._heap, self._port_of, time.monotonic
        woke = now()
        while not self._stopping:
            rest = woke + self._nap_seconds - now()
            if rest > SPIN_SECONDS:
                time.sleep(rest)
            wait = -1.0
            if heap:
                due = heap[0][0]
                if due - now() < SPIN_SECONDS:
                    wait = 0.0
                elif due != armed:
                    timer.set(due)
                    armed = due
            events = epoll.poll(wait)
            woke = now()
            for descriptor, _ in events:
                port = port_of.get(descriptor)
                if port is not None:
                    self._take(port, descriptor)
                    self._deliver()
                elif descriptor == parent:
                    return
                else:
                    server.handle(descriptor)
            self._deliver()

    def _take(self, port: int, device: int) -> None:
        """Read what nodes have sent, and book its way."""
        routes, offset, largest, heap = self._fabric.routes[port], self._offset, self._largest, self._heap
        read, now, draw = os.read, time.monotonic, random.random
        for _ in range(BATCH_PACKETS):
            try:
                packet = read(device, largest)
            except OSError:  # no more, or the interface is down
                return
            if packet[offset] >> 4 == 4:
                address = packet[offset + 16 : offset + 20]
            else:
                address = packet[offset + 24 : offset + 40]
            channel = routes.get(address) or self._fabric.route(port, address)
            if channel is None:
                continue
            size = _wire_bytes(packet) if offset else len(packet)
            due = channel.send(size, now(), draw)
            if due is not None:
                self._sequence += 1
                heapq.heappush(heap, (due, self._sequence, channel, packet, size, False))

    def _deliver(self) -> None:
        """Write what is due."""
        heap, pop, now = self._heap, heapq.heappop, time.monotonic
        until = now()
        while heap and heap[0][0] <= until:
            due, _, channel, packet, size, is_through = pop(heap)
            if not is_through:
                end = channel.arrive(size, due)
                if end is None:
                    continue
                if end > until:
                    self._sequence += 1
                    heapq.heappush(heap, (end, self._sequence, channel, packet, size, True))
                    continue
                due = end
            if channel.deliver(size):
                with suppress(OSError):  # the interface is down
                    os.write(self._devices[channel.target], packet)
                until = now()
                self._lateness.add(until - due)

    def _answer(self, request: control.Request) -> control.Answer:
        match request:
            case control.SetLink():
                self._set_link(request)
            case control.SetLine(node=node):
                for up, mbps in ((True, request.up_mbps), (False, request.down_mbps)):
                    if mbps is not control.UNSET:
                        self._fabric.set_line(node, up=up, mbps=mbps)
            case control.Cut(first=first, second=second):
                self._fabric.cut(first, second, True)
            case control.Heal(first=None):
                self._fabric.heal_all()
            case control.Heal(first=str(first), second=second):
                self._fabric.cut(first, second, False)
            case control.Renumber(node=node):
                self._fabric.renumber(node)
                return self._nodes()
            case control.AskNodes():
                return self._nodes()
            case control.AskStats(reset=reset):
                told = control.Told(self._stats())
                if reset:
                    self._reset()
                return told
            case control.Stop():
                self._stopping = True
        return control.Done()

    def _set_link(self, request: control.SetLink) -> None:
        before = self._fabric.settings(request.source, request.target)
        names = LinkSettings.__dataclass_fields__
        asked = {name: getattr(request, name) for name in names}
        held = {name: getattr(before, name) for name in names}
        changed = {name: value for name, value in asked.items() if value is not control.UNSET}
        settings = LinkSettings(**(held | changed))
        self._fabric.set_link(request.source, request.target, settings)
        self._choose_nap(min(settings.latency_ms, self._nap_seconds * 1e3 / NAP_SHARE))

    def _choose_nap(self, shortest_latency_ms: float) -> None:
        self._nap_seconds = min(MOST_NAP_SECONDS, NAP_SHARE * shortest_latency_ms / 1e3)

    def _nodes(self) -> control.Nodes:
        lab, numbers = self._start.name, self._fabric.numbers
        return control.Nodes(
            tuple(
                control.NodeState(node.name, namespaces.name_of(lab, node.name), number, node.behind_nat)
                for node, number in zip(self._start.spec.nodes, numbers, strict=True)
            )
        )

    def _stats(self) -> Stats:
        late_p99_ms = self._lateness.quantile_ms(0.99)
        return Stats(
            seconds=time.monotonic() - self._counting_since,
            cpu_seconds=time.process_time() - self._cpu_before,
            packets=self._lateness.total(),
            late_p50_ms=self._lateness.quantile_ms(0.5),
            late_p99_ms=late_p99_ms,
            void=late_p99_ms > VOID_ABOVE_MS,
            real_time=self._real_time,
            priority=self._priority,
            links=tuple(self._link_stats(channel) for channel in self._fabric.channels() if channel.seen()),
        )

    def _link_stats(self, channel: Channel) -> LinkStats:
        nodes = self._start.spec.nodes
        return LinkStats(
            source=nodes[channel.source].name,
            target=nodes[channel.target].name,
            packets=channel.delivered_packets,
            bytes=channel.delivered_bytes,
            queue_drops=channel.queue_drops,
            loss_drops=channel.loss_drops,
            cut_drops=channel.cut_drops,
        )

    def _reset(self) -> None:
        self._lateness = Lateness()
        self._counting_since, self._cpu_before = time.monotonic(), time.process_time()
        for channel in self._fabric.channels():
            channel.forget()


def _wire_bytes(packet: bytes) -> int:
    """Bytes of the IP packets that a packet with an offload header becomes, and of frames around later ones.

    The headers of each segment end after the TCP header, which starts where its checksum does.
    """
    _, kind, _, segment, start, _ = _OFFLOAD_HEADER.unpack_from(packet)
    size = len(packet) - tun.OFFLOAD_HEADER_BYTES
    if kind == 0 or segment == 0:
        return size
    headers: int = start + (packet[tun.OFFLOAD_HEADER_BYTES + start + 12] >> 4) * 4
    segments = -(-(size - headers) // segment)
    return size + (segments - 1) * (headers + FRAME_OVERHEAD)


def _take_priority() -> tuple[bool, str]:
    """Run before everything else that wants the processor; whether that was allowed, and how in words."""
    gc.freeze()
    gc.disable()  # the loop makes no cycles, and a collection would stop it
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
    except OSError as error:
        return False, f"real-time priority was refused: {error.strerror}"
    return True, f"real-time priority {PRIORITY}, first in first out"


class _Stopped(BaseException):
    """A signal asked the switch to end."""


def _stop(number: int, frame: FrameType | None) -> None:
    _ignore_signals()
    raise _Stopped


def _ignore_signals() -> None:
    """What is to be removed is removed in peace."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _open_devices(start: Start) -> list[int]:
    devices = []
    for port, node in enumerate(start.spec.nodes):
        name = namespaces.router_of if node.behind_nat else namespaces.name_of
        with tun.inside(name(start.name, node.name)):
            devices.append(tun.open_tun(start.spec.segmentation_offload))
        namespaces.configure(start.name, node, port + 1, start.spec.mtu)
    return devices


def _tell(started: Started) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(started) + b"\n")
    sys.stdout.buffer.flush()


def _serve(start: Start) -> None:
    """Bring a lab up, run it, and take it down whatever happens."""
    rooms = namespaces.all_of(start.name, start.spec.nodes)
    parent = os.pidfd_open(start.parent)
    registry.claim(start.name, rooms)
    try:
        namespaces.create(rooms)
        with select.epoll() as epoll:
            switch = Switch(start, _open_devices(start), epoll)
            _tell(Started())
            switch.run(parent)
    except _Stopped:
        pass
    finally:
        _ignore_signals()
        namespaces.remove(rooms)
        registry.release(start.name)


def main() -> int:
    """What the process does; its exit code."""
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    try:
        _serve(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Start))
    except LabError as error:
        _tell(Started(str(error)))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Carry packets between TUN devices: read what nodes send, and write it to its target when it is due.

With segmentation offload, a packet has a header and stands for many segments that the kernel did not split.
"""

from __future__ import annotations

import gc
import heapq
import os
import random
import select
import struct
import time
from collections.abc import Callable
from contextlib import suppress

from farflung.lab.switch import tun
from farflung.lab.switch.control_server import ControlHandler, ControlServer
from farflung.lab.switch.fabric import Fabric
from farflung.lab.switch.namespaces import LOOK_SECONDS
from farflung.lab.switch.shaper import FRAME_OVERHEAD, Channel
from farflung.lab.switch.stats import Meter

HEADER_BYTES = 10  # struct virtio_net_hdr before each packet of a TUN device with segmentation offload
_HEADER = struct.Struct("=BBHHHH")  # flags, kind, headers, segment bytes, checksum start, offset


def wire_bytes(packet: bytes) -> int:
    """Bytes of the IP packets that an offloaded packet stands for, with Ethernet headers except the first.

    The headers of each segment end with the TCP header, whose position is the start of its checksum.
    """
    _, kind, _, segment, start, _ = _HEADER.unpack_from(packet)
    size = len(packet) - HEADER_BYTES
    if kind == 0 or segment == 0:
        return size
    headers: int = start + (packet[HEADER_BYTES + start + 12] >> 4) * 4
    segments = -(-(size - headers) // segment)
    return size + (segments - 1) * (headers + FRAME_OVERHEAD)


BATCH_PACKETS = 64  # read from one device before due packets are delivered again
SPIN_SECONDS = 20e-6  # below this, polling again is cheaper than sleeping
MOST_NAP_SECONDS = 250e-6  # between two looks at the devices: halves the cost of a packet at 100 Mbit/s
NAP_SHARE = 0.025  # of the shortest latency, so that no nap shows in a round trip
PRIORITY = 10
LARGEST_BYTES = 65_535
_Event = tuple[float, int, Channel, bytes, int, bool]


class Switch:
    """The event loop over one TUN device per port.

    A packet is scheduled when it is read. An event in the heap is its arrival at the far access line or,
    after that, its delivery.
    """

    def __init__(self, devices: list[int], fabric: Fabric, handler: ControlHandler, meter: Meter) -> None:
        self._devices, self._fabric, self._handler, self._meter = devices, fabric, handler, meter
        self._port_of = {descriptor: port for port, descriptor in enumerate(devices)}
        has_headers = fabric.spec.segmentation_offload
        self._offset = HEADER_BYTES if has_headers else 0
        self._largest = self._offset + (LARGEST_BYTES if has_headers else fabric.spec.mtu)
        self._heap: list[_Event] = []
        self._sequence = 0

    def run(
        self, epoll: select.epoll, server: ControlServer, ends: tuple[int, ...], are_gone: Callable[[], bool]
    ) -> None:
        """Carry packets until a request to stop, or until one of the descriptors `ends` can be read.

        From then on `are_gone` is called every few milliseconds, and packets are carried until it returns
        true: processes that are ending may still send messages to others.
        """
        timer, armed = tun.Timer(), 0.0
        epoll.register(timer.descriptor, select.EPOLLIN | select.EPOLLET)
        for descriptor in (*self._devices, *ends):
            epoll.register(descriptor, select.EPOLLIN)
        heap, port_of, now = self._heap, self._port_of, time.monotonic
        woke, is_ending, looked = now(), False, 0.0
        while True:
            if is_ending and woke - looked >= LOOK_SECONDS:
                if are_gone():
                    return
                looked = now()
            nap = min(MOST_NAP_SECONDS, NAP_SHARE * self._fabric.shortest_latency)
            rest = woke + nap - now()
            if rest > SPIN_SECONDS:
                time.sleep(rest)
            wait = LOOK_SECONDS if is_ending else -1.0
            if heap:
                due = heap[0][0]
                if due - now() < SPIN_SECONDS:
                    wait = 0.0
                elif due != armed:
                    timer.set(due)
                    armed = due
            events = epoll.poll(wait)
            woke = now()
            for descriptor, mask in events:
                port = port_of.get(descriptor)
                if port is not None and mask & select.EPOLLERR:  # the device was deleted
                    epoll.unregister(descriptor)
                elif port is not None:
                    self._read_packets(port, descriptor)
                    self._deliver()
                elif descriptor in ends:
                    is_ending = True
                    epoll.unregister(descriptor)
                else:
                    server.handle(descriptor)
                    is_ending = is_ending or self._handler.is_stopping
            self._deliver()

    def _read_packets(self, port: int, device: int) -> None:
        """Read packets from nodes and schedule their delivery."""
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
            size = wire_bytes(packet) if offset else len(packet)
            due = channel.send(size, now(), draw)
            if due is not None:
                self._sequence += 1
                heapq.heappush(heap, (due, self._sequence, channel, packet, size, False))

    def _deliver(self) -> None:
        """Write the packets that are due."""
        heap, pop, now, late = self._heap, heapq.heappop, time.monotonic, self._meter.late
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
                late(until - due)


def take_priority() -> tuple[bool, str]:
    """Ask for real-time priority; returns whether that was allowed, and a text about it."""
    gc.freeze()
    gc.disable()  # the loop creates no reference cycles, and a collection would delay it
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
    except OSError as error:
        return False, f"real-time priority was refused: {error.strerror}"
    return True, f"real-time priority {PRIORITY}, first in first out"

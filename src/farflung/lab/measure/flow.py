"""Plain traffic between two nodes, to measure a network with: a TCP bulk flow and UDP probes.

`python -m farflung.lab.measure.flow ROLE ...` is one end of either. A receiving end prints `ready` when it
can be reached, and then its result as one line of JSON. It does not use farflung's own transport.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import sys
import time
from contextlib import suppress

import msgspec

from farflung.transport.net.sockets import ask_for_congestion_control
from farflung.transport.timeouts import Timeouts

CONGESTION_CONTROL = "cubic"  # keeps a queue full; the kernel's default if it is missing
READ_BYTES = 1 << 20
BUFFER_BYTES = 1 << 22
QUIET_SECONDS = 2.0
LEAST_SLEEP_SECONDS = 1e-3
NICENESS = -15  # measure the network, not the competition for the processor
_PROBE = struct.Struct("!Qd")


class Bulk(msgspec.Struct, frozen=True):
    """Payload that one TCP connection delivered in a period, without its first seconds."""

    bytes: int
    seconds: float

    @property
    def mbps(self) -> float:
        """In Mbit/s."""
        return self.bytes * 8e-6 / self.seconds if self.seconds else 0.0


class Probes(msgspec.Struct, frozen=True):
    """The UDP packets received, the seconds from first to last, and their median one-way latency.

    Both ends use the same clock.
    """

    received: int
    seconds: float
    latency_ms: float


def receive(port: int, window_bytes: int, skip_seconds: float, seconds: float) -> Bulk:
    """Accept one TCP connection and count bytes for `seconds`, from `skip_seconds` after its first byte.

    A window that keeps the link full and its queue half full avoids losses and the bursts after them; 0
    leaves the window to the kernel.
    """
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if window_bytes:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
        server.bind(("", port))
        server.listen(1)
        _say("ready")
        connection, _ = server.accept()
    with connection:
        buffer = bytearray(READ_BYTES)
        connection.recv_into(buffer)
        begin = time.monotonic() + skip_seconds
        count, now = 0, 0.0
        while (now := time.monotonic()) < begin:
            connection.recv_into(buffer)
        begin = now
        while (now := time.monotonic()) < begin + seconds:
            got = connection.recv_into(buffer)
            if not got:
                break
            count += got
        return Bulk(count, now - begin)


def send(address: str, port: int) -> None:
    """Send to a receiver until it closes the connection."""
    block = bytes(READ_BYTES)
    with socket.socket() as connection, suppress(ConnectionError):
        ask_for_congestion_control(connection, CONGESTION_CONTROL)
        connection.connect((address, port))
        while True:
            connection.sendall(block)


def listen(port: int, count: int) -> Probes:
    """Receive probes until the last of `count` has arrived, or none for two seconds."""
    arrivals: list[float] = []
    latencies: list[float] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, suppress(TimeoutError):
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        server.bind(("", port))
        server.settimeout(Timeouts().start_seconds)
        _say("ready")
        number = -1
        while number + 1 < count:
            number, sent = _PROBE.unpack_from(server.recv(READ_BYTES))
            arrivals.append(time.monotonic())
            latencies.append(arrivals[-1] - sent)
            server.settimeout(QUIET_SECONDS)
    seconds = arrivals[-1] - arrivals[0] if arrivals else 0.0
    return Probes(len(arrivals), seconds, statistics.median(latencies or [0.0]) * 1e3)


def probe(address: str, port: int, count: int, seconds: float, size: int) -> None:
    """Send `count` probes of `size` bytes, evenly over `seconds`."""
    padding = bytes(size - _PROBE.size)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        start = time.monotonic()
        for number in range(count):
            ahead = start + number * seconds / count - time.monotonic()
            if ahead > 0:
                time.sleep(max(ahead, LEAST_SLEEP_SECONDS))
            client.sendto(_PROBE.pack(number, time.monotonic()) + padding, (address, port))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Run one end of a flow."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    match arguments:
        case ["receive", port, window_bytes, skip_seconds, seconds]:
            found = receive(int(port), int(window_bytes), float(skip_seconds), float(seconds))
            _say(msgspec.json.encode(found).decode())
        case ["send", address, port]:
            send(address, int(port))
        case ["listen", port, count]:
            _say(msgspec.json.encode(listen(int(port), int(count))).decode())
        case ["probe", address, port, count, seconds, size]:
            probe(address, int(port), int(count), float(seconds), int(size))
        case _:
            sys.exit("usage: flow receive|send|listen|probe ...")


if __name__ == "__main__":
    main(sys.argv[1:])

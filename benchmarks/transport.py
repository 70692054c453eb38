"""A link's throughput and CPU time beside a plain blocking `ssl` socket, mutual TLS 1.3 on loopback.

Both systems run between two processes each, which stay up; messages of each size are sent by one system and
then by the other, in turn. CPU seconds are those of sender and receiver together. Exits 1 if a limit of the
project is missed.

    python benchmarks/transport.py [--json] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from farflung.broker.security.authority import Authority
from farflung.broker.storage.store import Store
from farflung.transport.endpoint import Hello, Link, Peer, dial, listen
from farflung.transport.security.certificates import certificate_to_pem, signing_request
from farflung.transport.security.identity import Identity, key_in
from farflung.transport.security.join_messages import AskCertificate
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import DataHeader, SliceHeader

KIBIBYTE, MEBIBYTE = 2**10, 2**20
SENDER, RECEIVER = Peer("sender", "worker"), Peer("receiver", "worker")
UNFINISHED = 16


@dataclass(frozen=True)
class Case:
    """Messages of one size, how many make one repeat, and the limits for the ratios link : plain socket."""

    size: int
    count: int
    least_throughput: float
    most_cpu: float


CASES = [
    Case(64 * KIBIBYTE, 4096, 0.5, 2.0),
    Case(MEBIBYTE, 256, 0.9, 1.2),
    Case(32 * MEBIBYTE, 10, 0.9, 1.2),
]


class Gate:
    """The receiving handler: fresh memory for each message, and a word when the last one is here."""

    def __init__(self) -> None:
        self.expected = 0

    def control(self, link: Link, message: bytes) -> None:
        self.expected = int(message)

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        return memoryview(bytearray(header.bytes))

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        self.expected -= 1
        if self.expected == 0:
            link.send_control(b"all here")

    def closed(self, link: Link, reason: str) -> None:
        os._exit(0)


class Finish:
    """The sending handler: waits for that word."""

    def __init__(self) -> None:
        self.all_here = asyncio.Event()

    def control(self, link: Link, message: bytes) -> None:
        self.all_here.set()

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        raise AssertionError("the receiver sends no data")

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        raise AssertionError("the receiver sends no data")

    def closed(self, link: Link, reason: str) -> None:
        if reason != "done":
            print(f"the link broke: {reason}", file=sys.stderr)
            os._exit(1)


async def link_receiver(identity: Identity) -> None:
    """Take messages over a link until it closes."""
    context, own = identity.server_context(False), Hello(RECEIVER.id, RECEIVER.role, "data")
    gate = Gate()
    listener = await listen("127.0.0.1:0", context, own, lambda link: gate, Timeouts())
    _say(address=listener.address)
    await asyncio.Event().wait()


async def link_sender(identity: Identity, address: str) -> None:
    """Send over a link what standard input asks for."""
    finish = Finish()
    own = Hello(SENDER.id, SENDER.role, "data")
    link = await dial(address, identity.client_context(), own, RECEIVER, finish, Timeouts())
    while line := await asyncio.to_thread(sys.stdin.readline):
        size, count = map(int, line.split())
        payload = payload_of(size)
        header = SliceHeader("job", 0, 0, "weight", 0, size, size, bytes(32))
        room = asyncio.Semaphore(UNFINISHED)
        finish.all_here.clear()
        started, cpu = time.perf_counter(), time.process_time()
        link.send_control(str(count).encode())
        for _ in range(count):
            await room.acquire()
            link.post(header, payload, room.release)
        await finish.all_here.wait()
        _say(seconds=time.perf_counter() - started, cpu=time.process_time() - cpu)
    await link.close("done")


def plain_receiver(identity: Identity) -> None:
    """Take length-prefixed messages over a blocking TLS socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    _say(address=f"127.0.0.1:{listener.getsockname()[1]}")
    raw, _ = listener.accept()
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = identity.server_context(False).wrap_socket(raw, server_side=True)
    prefix = memoryview(bytearray(8))
    while _fill(connection, prefix):
        for _ in range(struct.unpack("!q", prefix)[0]):
            _fill(connection, prefix)
            _fill(connection, memoryview(bytearray(struct.unpack("!q", prefix)[0])))
        connection.sendall(b"!")


def _fill(connection: ssl.SSLSocket, buffer: memoryview) -> bool:
    while buffer:
        count = connection.recv_into(buffer)
        if not count:
            return False
        buffer = buffer[count:]
    return True


def plain_sender(identity: Identity, address: str) -> None:
    """Send over a blocking TLS socket what standard input asks for."""
    host, port = address.split(":")
    raw = socket.create_connection((host, int(port)))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = identity.client_context().wrap_socket(raw, server_hostname=RECEIVER.name)
    while line := sys.stdin.readline():
        size, count = map(int, line.split())
        payload = payload_of(size)
        started, cpu = time.perf_counter(), time.process_time()
        connection.sendall(struct.pack("!q", count))
        for _ in range(count):
            connection.sendall(struct.pack("!q", size))
            connection.sendall(payload)
        connection.recv(1)
        _say(seconds=time.perf_counter() - started, cpu=time.process_time() - cpu)


@functools.cache
def payload_of(size: int) -> memoryview:
    """The same random bytes for every run, so that only the first, which is not counted, makes them."""
    return memoryview(os.urandom(size))


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


class System:
    """One system's two processes."""

    def __init__(self, name: str, folder: Path) -> None:
        self._receiver = self._start(name, "receiver", folder)
        address = answer_of(self._receiver)["address"]
        self._sender = self._start(name, "sender", folder, address)
        self._watched = [psutil.Process(child.pid) for child in (self._receiver, self._sender)]

    def run(self, size: int, count: int) -> tuple[float, float]:
        """Send `count` messages; bytes a second, and CPU seconds of both processes per GB (10^9 bytes)."""
        before = self._cpu_seconds()
        assert self._sender.stdin is not None
        self._sender.stdin.write(f"{size} {count}\n")
        self._sender.stdin.flush()
        seconds = answer_of(self._sender)["seconds"]
        return size * count / seconds, (self._cpu_seconds() - before) / (size * count / 1e9)

    def resident_bytes(self) -> int:
        """Memory of both processes."""
        return sum(process.memory_info().rss for process in self._watched)

    def stop(self) -> None:
        """End both."""
        assert self._sender.stdin is not None
        self._sender.stdin.close()
        for child in (self._sender, self._receiver):
            child.terminate()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()

    def _cpu_seconds(self) -> float:
        return sum(map(_cpu_seconds_of, self._watched))

    @staticmethod
    def _start(name: str, side: str, folder: Path, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--child", name, side, str(folder / side), *more]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer_of(child: subprocess.Popen[str]) -> dict[str, Any]:
    """The next JSON object that a process of a benchmark writes; ends the benchmark if it died."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        sys.exit("a process of the benchmark ended early: see above")
    return dict(json.loads(line))


def _cpu_seconds_of(process: psutil.Process) -> float:
    if sys.platform == "linux":
        # The process's CPU clock as clock_getcpuclockid(3) makes it: /proc counts in ticks of 10 ms.
        return time.clock_gettime((~process.pid << 3) | 2)
    times = process.cpu_times()
    return times.user + times.system


def child(name: str, side: str, folder: str, address: str = "") -> None:
    """Be one of the four processes."""
    identity = Identity.load(Path(folder))
    if (name, side) == ("link", "receiver"):
        asyncio.run(link_receiver(identity))
    elif (name, side) == ("link", "sender"):
        asyncio.run(link_sender(identity, address))
    elif side == "receiver":
        plain_receiver(identity)
    else:
        plain_sender(identity, address)


def make_identities(folder: Path) -> None:
    """Two workers of one broker."""
    with Store(folder / "broker") as store:
        authority = Authority.open(folder / "broker", store)
        for peer in (SENDER, RECEIVER):
            request = signing_request(key_in(folder / peer.id), peer.id, "worker")
            secret = authority.create_token("worker").secret
            certificate = authority.enrol(AskCertificate(secret, peer.id, "worker", request))
            Identity.write(
                folder / peer.id, certificate, certificate_to_pem(authority.certificate), "127.0.0.1:7700"
            )


def measure(case: Case, systems: dict[str, System], repeats: int, share: int) -> dict[str, Any]:
    """Both systems in turn; medians, and the medians of the ratios link : plain."""
    count = max(case.count // share, 2)
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    for system in systems.values():
        system.run(case.size, max(count // 4, 1))
    for repeat in range(repeats):
        for name in list(systems) if repeat % 2 else reversed(systems):
            runs[name].append(systems[name].run(case.size, count))
    rates = {name: statistics.median(rate for rate, _ in found) for name, found in runs.items()}
    cpu = {name: statistics.median(cpu for _, cpu in found) for name, found in runs.items()}
    # Of each pair of neighbours in time, so that what else runs on the machine hits both alike.
    pairs = list(zip(runs["link"], runs["plain"], strict=True))
    throughput_ratio = statistics.median(link[0] / plain[0] for link, plain in pairs)
    cpu_ratio = statistics.median(link[1] / plain[1] for link, plain in pairs)
    return {
        "message_bytes": case.size,
        "megabytes_per_second": {name: round(rate / 1e6, 1) for name, rate in rates.items()},
        "cpu_seconds_per_gb": {name: round(seconds, 3) for name, seconds in cpu.items()},
        "throughput_ratio": round(throughput_ratio, 3),
        "cpu_ratio": round(cpu_ratio, 3),
        "ok": throughput_ratio >= case.least_throughput and cpu_ratio <= case.most_cpu,
    }


def measure_memory(system: System, share: int) -> dict[str, Any]:
    """Memory of a link's two processes after few and after many small messages."""
    few, many = 200, 40_000 // share
    system.run(16 * KIBIBYTE, few)
    before = system.resident_bytes()
    system.run(16 * KIBIBYTE, many)
    growth = system.resident_bytes() - before
    return {
        "messages": [few, many],
        "resident_megabytes": round(before / 1e6, 1),
        "growth_megabytes": round(growth / 1e6, 1),
        "ok": growth < 8e6,
    }


def main() -> int:
    """Run the benchmark; 0 if every limit is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="three short repeats instead of ten")
    options = parser.parse_args()
    repeats, share = (3, 4) if options.quick else (10, 1)
    with tempfile.TemporaryDirectory() as name:
        make_identities(Path(name))
        systems = {system: System(system, Path(name)) for system in ("plain", "link")}
        try:
            rows = [measure(case, systems, repeats, share) for case in CASES]
            memory = measure_memory(systems["link"], share)
        finally:
            for system in systems.values():
                system.stop()
    result = {"rows": rows, "memory": memory, "ok": memory["ok"] and all(row["ok"] for row in rows)}
    print(json.dumps(result, indent=2) if options.json else _table(result))
    return 0 if result["ok"] else 1


def _table(result: dict[str, Any]) -> str:
    lines = ["message KiB   MB/s link  plain  ratio   CPU s/GB link  plain  ratio"]
    for row in result["rows"]:
        rate, cpu = row["megabytes_per_second"], row["cpu_seconds_per_gb"]
        lines.append(
            f"{row['message_bytes'] // KIBIBYTE:11d}  {rate['link']:10.0f} {rate['plain']:6.0f} "
            f"{row['throughput_ratio']:6.2f}  {cpu['link']:14.2f} {cpu['plain']:6.2f} {row['cpu_ratio']:6.2f}"
            f"  {'ok' if row['ok'] else 'MISSED'}"
        )
    memory = result["memory"]
    lines.append(
        f"memory: {memory['resident_megabytes']} MB after {memory['messages'][0]} messages, "
        f"{memory['growth_megabytes']:+} MB after {memory['messages'][1]} more"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        sys.exit(main())

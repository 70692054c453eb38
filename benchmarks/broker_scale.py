"""What N workers cost one broker, with its store in SQLite and, given a database, in PostgreSQL.

The workers are light: each joins with a token, dials over TLS and registers, all in this one process, and
then only sends heartbeats; nothing is computed. The broker is a process of its own. All are on loopback.

1. *Join storm*: all join and register, 32 at a time. A registration is answered when it is stored.
2. *Heartbeats*: all are silent but for those.
   *Changes*: ten of them measure their devices again each second, so that what a page shows changes; then
   the same while viewers read all events of the live page. Without `--viewers` the broker has no page.
3. *One in ten gone at once*: their connections are cut; until the broker's status shows them as lost.

    python benchmarks/broker_scale.py [--workers 200] [--seconds 20] [--viewers N] [--store postgresql://...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import positive

from farflung.broker.security.authority import create_token
from farflung.client.run.broker_client import ask_status
from farflung.protocol.broker_session import dial_broker
from farflung.protocol.fields import Opset
from farflung.protocol.messages import Measured, Register, Registered, ToWorker, decode, encode
from farflung.protocol.registration import Device
from farflung.transport.link.link import Link
from farflung.transport.net.address_file import read_address
from farflung.transport.security.enrolment import enrol
from farflung.transport.security.identity import Identity
from farflung.transport.security.tokens import Token
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import DataHeader

AT_ONCE = 32
WAIT_SECONDS = 120.0
CHANGING = 10
PAGE = "127.0.0.1:7793"
DEVICE = Device("cpu", "light", 1, 2**30, "2.13.0", Opset.own())


@dataclass(frozen=True)
class Figures:
    """Of one broker. CPU seconds are those of its process; `store` is the database."""

    store: str
    workers: int
    join_seconds: float
    join_cpu_seconds: float
    registration_ms_median: float
    registration_ms_p99: float
    memory_mb_before: float
    memory_mb: float
    heartbeat_cpu_percent: float
    changes_cpu_percent: float
    viewed_cpu_percent: float | None
    gone_seconds: float
    gone_cpu_seconds: float


class LightWorker:
    """One registered worker: the handler of its connection."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.seconds = 0.0
        self._registered = asyncio.get_running_loop().create_future()

    async def register(self) -> None:
        """Dial the broker, and wait until it has stored the registration."""
        context = await asyncio.to_thread(self.identity.client_context)
        self.link = await dial_broker(self.identity, self, Timeouts(), context)
        began = time.perf_counter()
        self.link.send_control(encode(Register(DEVICE, "", ["0.0.0.0:9"], self.identity.id)))
        await asyncio.wait_for(self._registered, WAIT_SECONDS)
        self.seconds = time.perf_counter() - began

    def control(self, link: Link, message: bytes) -> None:
        """Note the answer to the registration."""
        if isinstance(decode(message, ToWorker), Registered) and not self._registered.done():
            self._registered.set_result(None)

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        """Take no data."""
        raise AssertionError("a broker sends no data")

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        """Never called."""

    def closed(self, link: Link, reason: str) -> None:
        """Fail if the worker was not registered yet."""
        if not self._registered.done():
            self._registered.set_exception(ConnectionError(reason))


def main() -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=200, choices=range(10, 2001), metavar="10..2000")
    parser.add_argument("--seconds", type=positive, default=20.0, help="of heartbeats")
    parser.add_argument("--viewers", type=int, default=0, choices=range(100), metavar="0..99")
    parser.add_argument("--store", default="", help="an empty PostgreSQL database to measure beside SQLite")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if soft < hard else soft, hard))
    found = [
        measured(store, options.workers, min(options.seconds, 300.0), options.viewers)
        for store in ("", *filter(None, [options.store]))
    ]
    if options.json:
        print(json.dumps([asdict(figures) for figures in found], indent=2))
        return 0
    for name in asdict(found[0]):
        cells = [getattr(figures, name) for figures in found]
        words = [f"{cell:,.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
        print(f"{name:26}" + "".join(f"{cell:>16}" for cell in words))
    return 0


def measured(store: str, workers: int, seconds: float, viewers: int = 0) -> Figures:
    """The figures of a broker in a new folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "broker"
        command = [sys.executable, "-m", "farflung", "broker", "--listen", "127.0.0.1:0", "--no-survey"]
        environment = {**os.environ, **({"FARFLUNG_STORE": store} if store else {})}
        broker = subprocess.Popen(
            [*command, "--folder", str(folder), *(["--web", PAGE] if viewers else [])],
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        try:
            while read_address(folder) is None:
                if broker.poll() is not None:
                    raise SystemExit("the broker did not start: is the database empty and reachable?")
                time.sleep(0.05)
            process = psutil.Process(broker.pid)
            return asyncio.run(_measured(store, folder, process, workers, seconds, viewers))
        finally:
            broker.terminate()
            broker.wait()


async def _measured(
    store: str, folder: Path, broker: psutil.Process, number: int, seconds: float, viewers: int
) -> Figures:
    address = read_address(folder)
    assert address is not None
    before = broker.memory_info().rss
    token = create_token(folder, "worker", number)
    viewer = await enrol(address, create_token(folder, "viewer"), folder.parent / "viewer", "viewer")
    clock, cpu = time.perf_counter(), _cpu(broker)
    workers = await _join_storm(address, token, folder.parent, number)
    joined, join_cpu = time.perf_counter() - clock, _cpu(broker) - cpu
    await asyncio.sleep(2)
    beat = await _share(broker, seconds)
    changing = asyncio.create_task(_change(workers[-CHANGING:]))
    changes = await _share(broker, seconds)
    viewed = await _viewed(broker, seconds, viewers) if viewers else None
    changing.cancel()
    await asyncio.gather(changing, return_exceptions=True)
    memory = broker.memory_info().rss
    clock, cpu = time.perf_counter(), _cpu(broker)
    for worker in workers[: number // 10]:
        worker.link._transport.abort()
    await asyncio.wait_for(_until_left(viewer.identity, number - number // 10), WAIT_SECONDS)
    gone, gone_cpu = time.perf_counter() - clock, _cpu(broker) - cpu
    for worker in workers[number // 10 :]:
        worker.link._transport.abort()
    milliseconds = sorted(1000 * worker.seconds for worker in workers)
    return Figures(
        store="PostgreSQL" if store else "SQLite",
        workers=number,
        join_seconds=joined,
        join_cpu_seconds=join_cpu,
        registration_ms_median=statistics.median(milliseconds),
        registration_ms_p99=milliseconds[int(0.99 * (number - 1))],
        memory_mb_before=before / 1e6,
        memory_mb=memory / 1e6,
        heartbeat_cpu_percent=100 * beat,
        changes_cpu_percent=100 * changes,
        viewed_cpu_percent=None if viewed is None else 100 * viewed,
        gone_seconds=gone,
        gone_cpu_seconds=gone_cpu,
    )


async def _share(broker: psutil.Process, seconds: float) -> float:
    """CPU seconds of the broker a second."""
    clock, cpu = time.perf_counter(), _cpu(broker)
    await asyncio.sleep(seconds)
    return (_cpu(broker) - cpu) / (time.perf_counter() - clock)


async def _change(workers: list[LightWorker]) -> None:
    """Measure devices again each second, each time with another rate."""
    for number in count(1):
        for worker in workers:
            worker.link.send_control(encode(Measured(1.0 + number / 1000)))
        await asyncio.sleep(1)


async def _viewed(broker: psutil.Process, seconds: float, viewers: int) -> float:
    """The same while so many processes read all events of the page."""
    command = ("curl", "-sN", "-o", os.devnull, f"http://{PAGE}/api/v1/events")
    watching = [await asyncio.create_subprocess_exec(*command) for _ in range(viewers)]
    try:
        await asyncio.sleep(2)
        return await _share(broker, seconds)
    finally:
        for one in watching:
            one.kill()
            await one.wait()


async def _join_storm(address: str, token: Token, folder: Path, count: int) -> list[LightWorker]:
    turn = asyncio.Semaphore(AT_ONCE)

    async def join(number: int) -> LightWorker:
        async with turn:
            name = f"w{number}"
            worker = LightWorker((await enrol(address, token, folder / name, "worker", name)).identity)
            await worker.register()
            return worker

    return await asyncio.gather(*(join(number) for number in range(count)))


async def _until_left(viewer: Identity, count: int) -> None:
    while True:
        status = await ask_status(viewer)
        if len(status.backup_pool) <= count:
            return
        await asyncio.sleep(0.1)


def _cpu(process: psutil.Process) -> float:
    times: Any = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    sys.exit(main())

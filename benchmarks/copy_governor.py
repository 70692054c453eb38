"""How much longer a step takes while a worker sends a copy over another link of the same home line.

    python -m benchmarks.copy_governor [--mbps 8] [--steps 6] [--rounds 3] [--json]

One process, two real links on loopback through a proxy that passes so many Mbit/s on in all, with little
memory. A step is eight microbatches; each sends 100 kB of a value over one link, waits until they have
arrived, and computes for 0.3 s: 3.2 s at 8 Mbit/s. Nothing overlaps, so each delay of a value counts.
Meanwhile the other link sends nothing, a copy, or a copy under the governor that both links share. The three
take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from benchmarks.arguments import positive, whole

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from farflung.transport.endpoint import Hello, Link, dial, listen
from farflung.transport.link.governor import Governor
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import DataHeader, SliceHeader, ValueHeader
from transport import RECEIVER, SENDER, make_identities

VALUE_BYTES, MICROBATCHES, COMPUTING_SECONDS = 100_000, 8, 0.3
COPY_BYTES = 2**20
PACKET_BYTES, MEMORY_BYTES = 4096, 2**14
NOTHING, COPY, GOVERNED = "no copy", "a copy", "a governed copy"


class HomeLine:
    """Passes bytes of all connections on, one packet after another."""

    def __init__(self, bytes_per_second: float, target: tuple[str, int]) -> None:
        self._rate, self._target = bytes_per_second, target
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    async def carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        far, on = await asyncio.open_connection(*self._target, limit=MEMORY_BYTES)
        on.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MEMORY_BYTES)
        await asyncio.gather(self._up(near, on), _down(far, back))

    async def _up(self, near: asyncio.StreamReader, on: asyncio.StreamWriter) -> None:
        while data := await near.read(PACKET_BYTES):
            async with self._turn:
                now = time.monotonic()
                self._free_at = max(self._free_at, now) + len(data) / self._rate
                await asyncio.sleep(self._free_at - now)
            on.write(data)
            await on.drain()
        on.close()


async def _down(far: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
    while data := await far.read(2**16):
        back.write(data)
        await back.drain()
    back.close()


class End:
    """Takes everything, and says when a value has arrived."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()

    def control(self, link: Link, message: bytes) -> None:
        """Nothing is said here."""

    def opening(self, link: Link, header: DataHeader) -> memoryview:
        """Any message is welcome."""
        return memoryview(bytearray(header.bytes))

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        """A step waits for its value."""
        if isinstance(header, ValueHeader):
            self.arrived.set()

    def closed(self, link: Link, reason: str) -> None:
        """The round is over."""


async def steps(folder: Path, what: str, mbps: float, count: int) -> tuple[list[float], float]:
    """The seconds of each step, and the rate of the copy in bytes per second."""
    sender, receiver = (Identity.load(folder / peer.id) for peer in (SENDER, RECEIVER))
    end, timeouts = End(), Timeouts()
    own = Hello(RECEIVER.id, RECEIVER.role, "data")
    server = receiver.server_context(admit_joiners=False)
    listener = await listen("127.0.0.1:0", server, own, lambda link: end, timeouts)
    home = HomeLine(mbps * 1e6 / 8, ("127.0.0.1", listener.port))
    proxy = await asyncio.start_server(home.carry, "127.0.0.1", 0, limit=MEMORY_BYTES)
    for taken in proxy.sockets:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MEMORY_BYTES)
    address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    hello, context = Hello(SENDER.id, SENDER.role, "data"), sender.client_context()
    train, spread = [await dial(address, context, hello, RECEIVER, End(), timeouts) for _ in range(2)]
    if what == GOVERNED:
        governor = Governor(time.monotonic)
        for link in (train, spread):
            link.govern(governor)
    copying = asyncio.create_task(_copy(spread)) if what != NOTHING else None
    seconds, began = list[float](), time.monotonic()
    for number in range(count):
        start = time.monotonic()
        for microbatch in range(MICROBATCHES):
            end.arrived.clear()
            train.post(_value(number, microbatch), memoryview(bytes(VALUE_BYTES)))
            await end.arrived.wait()
            await asyncio.sleep(COMPUTING_SECONDS)
        seconds.append(time.monotonic() - start)
    rate = spread.state_bytes_sent / (time.monotonic() - began)
    if copying is not None:
        copying.cancel()
    await asyncio.gather(train.close("over"), spread.close("over"))
    proxy.close()
    await listener.close()
    return seconds[1:], rate


def _value(number: int, microbatch: int) -> ValueHeader:
    return ValueHeader("job", 1, number, microbatch, 0, 1, 7, False, 0, VALUE_BYTES)


async def _copy(link: Link) -> None:
    data = memoryview(bytes(COPY_BYTES))
    while True:
        await link.send(SliceHeader("job", 1, 0, "", 0, COPY_BYTES, COPY_BYTES, bytes(32), "copy", 3), data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--mbps", type=positive, default=8.0, help="of the line: %(default)s")
    found.add_argument("--steps", type=whole, default=6, help="in a round: %(default)s")
    found.add_argument("--rounds", type=whole, default=3, help="%(default)s")
    found.add_argument("--json", action="store_true")
    given = found.parse_args(arguments)
    times, rates = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_identities(folder)
        for _ in range(given.rounds):
            for what in (NOTHING, COPY, GOVERNED):
                seconds, rate = asyncio.run(steps(folder, what, given.mbps, given.steps))
                times[what] += seconds
                rates[what].append(rate)
    plain = statistics.median(times[NOTHING])
    rows = [
        {
            "beside": what,
            "step_seconds": statistics.median(seconds),
            "longer": statistics.median(seconds) / plain - 1,
            "copy_mbps": statistics.median(rates[what]) * 8e-6,
        }
        for what, seconds in times.items()
    ]
    if given.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(
                "{beside:16} a step {step_seconds:.3f} s ({longer:+.1%}), copy {copy_mbps:.2f} Mbit/s".format(
                    **row
                )
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

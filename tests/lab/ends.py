"""The two ends of a path in a lab, each a process: one serves, the other probes it or sends a step's traffic.

    python -m tests.lab.ends (serve | probe | send) ADDRESS AUTHORITY CERTIFICATE KEY [SIZE GAP_SECONDS TIMES]

Each prints JSON lines: `serve` one when it listens and, per data link, one with what that link has seen.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
from tests.support.links import Recorder, value_header

from farflung.transport.endpoint import Handler, Hello, Link, Peer, dial, listen
from farflung.transport.probing.probe import Prober
from farflung.transport.security.certificates import client_context, server_context
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import Kind
from farflung.transport.wire.headers import DataHeader

TIMEOUTS = Timeouts(2.0)  # so that pings come often


class Drain(Recorder):
    """Takes what comes, and at the end says what the link has seen of its path."""

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        pass

    def closed(self, link: Link, reason: str) -> None:
        tell(link.status)


def tell(document: object) -> None:
    """One line for whoever started this process."""
    print(msgspec.json.encode(document).decode(), flush=True)


def admitted(link: Link) -> Handler:
    """Links of either kind."""
    return Prober() if link.kind == "probe" else Drain()


async def serve(address: str, files: list[Path]) -> None:
    """Listen until killed."""
    authority, certificate, key = files
    context = server_context(authority.read_bytes(), certificate, key, admit_joiners=False)
    await listen(address, context, Hello("b", "worker", "data"), admitted, TIMEOUTS)
    tell("listening")
    await asyncio.Event().wait()


async def dialled(address: str, files: list[Path], kind: Kind, handler: Handler) -> Link:
    """A link to the one who serves."""
    authority, certificate, key = files
    context = client_context(authority.read_bytes(), certificate, key)
    return await dial(address, context, Hello("a", "worker", kind), Peer("b", "worker"), handler, TIMEOUTS)


async def probe(address: str, files: list[Path]) -> None:
    """Probe once and say what was found."""
    prober = Prober()
    link = await dialled(address, files, "probe", prober)
    tell(await prober.probe(link))
    await link.close("done")


async def send(address: str, files: list[Path], size: int, gap_seconds: float, times: int) -> None:
    """Send messages with pauses between them, as a pipeline's steps do."""
    link = await dialled(address, files, "data", Recorder())
    for microbatch in range(times):
        await link.send(value_header(size, gradient=False, microbatch=microbatch), memoryview(bytes(size)))
        await asyncio.sleep(gap_seconds)
    tell(link.status)
    await link.close("done")


def main(role: str, address: str, *rest: str) -> None:
    """What the command line asks for."""
    files, numbers = [Path(name) for name in rest[:3]], rest[3:]
    if role == "send":
        asyncio.run(send(address, files, int(numbers[0]), float(numbers[1]), int(numbers[2])))
    else:
        asyncio.run((serve if role == "serve" else probe)(address, files))


if __name__ == "__main__":
    main(*sys.argv[1:])

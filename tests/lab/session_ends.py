"""The two ends of a session in a lab, and a relay between them, each a process.

    python -m tests.lab.session_ends ROLE FOLDER ADDRESS CONNECTIONS BYTES

`send` posts one message on the submitter's line to a worker, `receive` is that worker's end, `relay` joins
the two. All say what they did in one JSON line. The folder has their certificates; in place of the broker's
words about circuits the dialler leaves files there.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from tests.support.client_workers import WELCOME, Told, Worker
from tests.support.links import Recorder, value_header

from farflung.client.run.broker_client import Lost
from farflung.client.run.worker_session import WorkerSession
from farflung.errors import ConnectionFailed
from farflung.transport.endpoint import Handler, Hello, Link, LinkOptions, Peer, dial, dial_over, listen
from farflung.transport.relay.circuits import TOKEN_BYTES, join
from farflung.transport.relay.relay import Relay
from farflung.transport.security.certificates import client_context, server_context
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import DataHeader

TIMEOUTS = Timeouts(4.0)
SENDER, RECEIVER = Peer("s", "submitter"), Peer("b", "worker")
RELAY_BYTES_PER_SECOND = 1e9


def tell(document: object) -> None:
    """One line for whoever started this process."""
    print(msgspec.json.encode(document).decode(), flush=True)


def payload(size: int) -> bytes:
    """The message."""
    return hashlib.shake_256(b"a message").digest(size)


def files(folder: Path, holder: Peer) -> tuple[bytes, Path, Path]:
    """What a holder shows; see `write_files`."""
    return (folder / "ca.pem").read_bytes(), folder / f"{holder.id}.pem", folder / f"{holder.id}.key"


def tokens(number: int) -> tuple[bytes, bytes]:
    """Of the circuit for the dialler's attempt of this number."""
    return bytes([number, 0] * (TOKEN_BYTES // 2)), bytes([number, 1] * (TOKEN_BYTES // 2))


async def asked(folder: Path, number: int) -> None:
    """Until the dialler wants a circuit for the time of this number."""
    while not (folder / f"circuit.{number}").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


class Submitter(Told):
    """Paths, feeder, collector and ears of a worker line: it finds its worker at one address or by relay."""

    def __init__(self, folder: Path, address: str, options: LinkOptions, relayed: bool) -> None:
        super().__init__()
        self.timeouts = TIMEOUTS
        self._folder, self._address, self._options, self._relayed = folder, address, options, relayed
        self._context = client_context(*files(folder, SENDER))
        self._numbers = itertools.count()
        self.links = 0
        self.lost = ""

    async def connect(self, planned: Any, worker: str, addresses: Sequence[str], handler: Handler) -> Link:
        """A link, however it comes about."""
        own = Hello(SENDER.id, SENDER.role, "data")
        if self._relayed:
            number = next(self._numbers)
            (self._folder / f"circuit.{number}").touch()
            raw = await join(self._address, tokens(number)[0], TIMEOUTS)
            link = await dial_over(raw, "the relay", self._context, own, RECEIVER, handler, TIMEOUTS)
        else:
            address, options = self._address, self._options
            link = await dial(address, self._context, own, RECEIVER, handler, TIMEOUTS, options)
        self.links += 1
        return link

    def hear(self, lost: Lost) -> None:
        """The worker is lost."""
        self.lost = lost.reason


async def send(folder: Path, address: str, options: LinkOptions, relayed: bool, size: int) -> None:
    """Until the message was acknowledged, or the worker is lost."""
    submitter = Submitter(folder, address, options, relayed)
    line = WorkerSession(RECEIVER.id, WELCOME, submitter, submitter, submitter.hear)  # type: ignore[arg-type]
    planned = type("Planned", (), {"job": WELCOME.job, "attempt": WELCOME.attempt, "addresses": {}})()
    await line.connect(submitter, planned)  # type: ignore[arg-type]
    began = asyncio.get_running_loop().time()
    line.post(value_header(size, gradient=False), memoryview(payload(size)))
    while line._session.unacknowledged and not submitter.lost:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    seconds = asyncio.get_running_loop().time() - began
    tell({"lost": submitter.lost, "links": submitter.links, "sent": line.bytes_sent, "seconds": seconds})
    await line.close("done")


class Receiver(Worker):
    """Says what came."""

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        tell({"right": bytes(buffer) == payload(header.bytes), "connections": link.connections})


async def receive(folder: Path, address: str, options: LinkOptions, relayed: bool) -> None:
    """Listen until killed; with a relay at `address`, take a circuit each time the dialler asks for one."""
    worker, own = Receiver(), Hello(RECEIVER.id, RECEIVER.role, "data")
    context = server_context(*files(folder, RECEIVER), admit_joiners=False)
    where = "[::]:7700" if relayed else address
    listener = await listen(where, context, own, worker.accept, TIMEOUTS, options=options)
    tell("listening")
    for number in itertools.count():
        await asked(folder, number)
        with suppress(ConnectionFailed):  # the dialler tries again, with another circuit
            raw = await join(address, tokens(number)[1], TIMEOUTS)
            await listener.accept_circuit(raw, SENDER, "the relay")


async def relay(folder: Path, address: str) -> None:
    """Carry circuits until killed."""
    carrying = Relay(RELAY_BYTES_PER_SECOND, TIMEOUTS)
    own = Peer("r", "worker")
    context = server_context(*files(folder, own), admit_joiners=False)
    hello = Hello(own.id, own.role, "data")
    listener = await listen(address, context, hello, Recorder().admit, TIMEOUTS)
    listener.set_relay(carrying)
    tell("listening")
    for number in itertools.count():
        await asked(folder, number)
        carrying.grant(f"circuit {number}", tokens(number), 2**30)


def main(role: str, folder: str, address: str, relayed: str, connections: str, size: str) -> None:
    """What the command line asks for."""
    width = int(connections)
    options = LinkOptions("cubic" if width > 1 else "bbr", width)
    if role == "send":
        asyncio.run(send(Path(folder), address, options, relayed == "relayed", int(size)))
    elif role == "receive":
        asyncio.run(receive(Path(folder), address, options, relayed == "relayed"))
    else:
        asyncio.run(relay(Path(folder), address))


if __name__ == "__main__":
    main(*sys.argv[1:])

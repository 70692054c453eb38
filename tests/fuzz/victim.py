"""The endpoint that is attacked: a process of its own, with the handlers of a worker in little, and with the
limits that a broker sets to the messages of each role.

Says its address, and answers each line on standard input with what it holds at that moment.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from farflung.broker.network.allowances import Allowances
from farflung.errors import ProtocolError
from farflung.protocol import messages
from farflung.transport.endpoint import Handler, Hello, Link, listen
from farflung.transport.probing.probe import Prober
from farflung.transport.security import join_messages
from farflung.transport.security.certificates import server_context
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import DataHeader, SliceHeader

HEALTHY = "healthy"
LEASE_SECONDS = 15.0
"""Patience with attackers who stand still for a moment: they are to be refused for what they say."""
MOST_BYTES = 2**18
"""What the plan of this endpoint allows a message to have."""
TO_BROKER: dict[str, Any] = {
    "worker": messages.FromWorker, "submitter": messages.FromSubmitter, "viewer": messages.FromViewer,
}  # fmt: skip
"""What each role may say on a control connection."""
SPOKEN_BYTES = 100
"""What it sends to everybody: so many bytes of data in one message, and one control message."""


class Holding(msgspec.Struct):
    """What the victim holds, and whom it has served."""

    address: str
    resident_bytes: int
    links: int
    tasks: int
    descriptors: int
    verified: int
    over_limits: int


class Limits:
    """A broker's limits of each role (`transport.handler.ControlGuard`); `broken` counts who broke one."""

    def __init__(self) -> None:
        self.broken = 0
        self._allowances = Allowances()

    def on_control_begins(self, link: Link, total: int) -> None:
        """Refuse what is too large for its sender, as the broker does."""
        with self._counting():
            self._allowances.begin(link, link.peer, total, time.monotonic())

    def on_control_head(self, link: Link, head: bytes, total: int) -> None:
        """Refuse what is too large for its kind."""
        with self._counting():
            self._allowances.check_kind(head, total)

    def on_control_ends(self, link: Link) -> None:
        """It is complete, or the link is over."""
        self._allowances.end(link)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except ProtocolError:
            self.broken += 1
            raise


class Victim:
    """A handler that gives back what its healthy peer sends, and judges all others by a plan."""

    def __init__(self) -> None:
        self.links: set[Link] = set()
        self.verified = 0
        self.limits = Limits()

    def admit(self, link: Link) -> Handler:
        """Everybody with a certificate is let in."""
        if link.kind == "probe":
            asyncio.get_running_loop().call_soon(_speak, link)
            return Prober()
        self.links.add(link)
        if link.kind == "control":
            link.guard = self.limits
        if link.peer.id != HEALTHY:
            # What the sessions were recorded with: their credit and receipts are for this.
            asyncio.get_running_loop().call_soon(_speak, link)
        return self

    def control(self, link: Link, message: bytes) -> None:
        """Whatever a holder may say to a broker, or a worker to another one."""
        if link.kind == "control":
            messages.decode(message, TO_BROKER[link.peer.role])
        else:
            messages.decode(message, messages.FromPeer)

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        """Memory is given within the plan only."""
        if link.kind != "data":
            raise ProtocolError("expected no data on a control connection")
        if header.bytes > MOST_BYTES:
            raise ProtocolError(f"expected at most {MOST_BYTES} bytes, found {header.bytes}")
        return memoryview(bytearray(header.bytes))

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        """The healthy peer gets back what it sent, if it came as it left."""
        if link.peer.id == HEALTHY and isinstance(header, SliceHeader):
            if hashlib.sha256(buffer).digest() != header.sha256:
                raise ProtocolError("the healthy peer's bytes were damaged")
            self.verified += 1
            link.post(header, buffer)

    def closed(self, link: Link, reason: str) -> None:
        """Forget it."""
        self.limits.on_control_ends(link)
        self.links.discard(link)


async def main(context: ssl.SSLContext) -> None:
    """Listen until standard input ends."""
    victim, process = Victim(), psutil.Process()
    own = Hello("b", "worker", "data")
    timeouts = Timeouts(LEASE_SECONDS)
    listener = await listen("127.0.0.1:0", context, own, victim.admit, timeouts, _on_joiner)
    while True:
        holding = Holding(
            address=listener.address,
            resident_bytes=process.memory_info().rss,
            links=len(victim.links),
            tasks=len(asyncio.all_tasks()),
            descriptors=process.num_fds(),
            verified=victim.verified,
            over_limits=victim.limits.broken,
        )
        print(msgspec.json.encode(holding).decode(), flush=True)
        if not await asyncio.to_thread(sys.stdin.readline):
            break
    await listener.close()


def _speak(link: Link) -> None:
    header = SliceHeader("job", 1, 0, "weight", 0, SPOKEN_BYTES, SPOKEN_BYTES, bytes(32))
    link.post(header, memoryview(bytes(SPOKEN_BYTES)))
    link.send_control(b"ask")


async def _on_joiner(request: bytes, remote: str) -> bytes:
    join_messages.decode_request(request)
    return join_messages.encode(join_messages.Refuse("this endpoint accepts no joiners"))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    authority, certificate, key = map(Path, sys.argv[1:])
    asyncio.run(main(server_context(authority.read_bytes(), certificate, key, admit_joiners=True)))

"""Real links between two holders in one process, and peers that misbehave."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tests.support.certificates import Holder, TestAuthority

from farflung.transport.endpoint import Hello, Link, LinkOptions, Listener, Peer, dial, listen
from farflung.transport.net.addresses import parse_address
from farflung.transport.options import DEFAULT_OPTIONS
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frame_reader import FrameReader
from farflung.transport.wire.frames import Close, Frame, encode
from farflung.transport.wire.headers import DataHeader, SliceHeader, ValueHeader

Given = TypeVar("Given")


def usual_but(**limits: float) -> Timeouts:
    """The usual limits but for these: brief is what a test waits for, and nothing else."""
    return type("UsualBut", (Timeouts,), limits)()


@cache
def _taken() -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    return taken


def nowhere() -> str:
    """An address at which nobody listens, nor ever will: its port is kept from others."""
    return f"127.0.0.1:{_taken().getsockname()[1]}"


def slice_header(size: int, name: str = "weight") -> SliceHeader:
    """The header of a state slice of `size` bytes."""
    return SliceHeader("job", 1, 0, name, 0, size, size, bytes(32))


def value_header(size: int, gradient: bool, microbatch: int = 0) -> ValueHeader:
    """The header of an activation or gradient of `size` bytes."""
    return ValueHeader("job", 1, 0, microbatch, 0, 1, 7, gradient, 0, size)


@dataclass
class Recorder:
    """A handler that keeps everything; `refuse` and `drop` say which headers are refused or dropped."""

    refuse: Callable[[DataHeader], Exception | None] = lambda header: None
    drop: Callable[[DataHeader], bool] = lambda header: False
    links: list[Link] = field(default_factory=list)
    controls: list[bytes] = field(default_factory=list)
    opened: list[DataHeader] = field(default_factory=list)
    messages: list[tuple[DataHeader, memoryview]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def admit(self, link: Link) -> Recorder:
        """Take a link that came in over a listener."""
        self.links.append(link)
        self.changed.set()
        return self

    def control(self, link: Link, message: bytes) -> None:
        self.controls.append(message)
        self.order.append("control")
        self.changed.set()

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        if error := self.refuse(header):
            raise error
        if self.drop(header):
            return None
        self.opened.append(header)
        self.changed.set()
        return memoryview(bytearray(header.bytes))

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        self.messages.append((header, buffer))
        self.order.append("value" if isinstance(header, ValueHeader) else "slice")
        self.changed.set()

    def closed(self, link: Link, reason: str) -> None:
        self.reasons.append(reason)
        self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something that this handler was told makes `holds` true."""
        async with asyncio.timeout(60):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


@dataclass
class Pair:
    """Worker a has dialled worker b."""

    authority: TestAuthority
    a: Link
    heard_by_a: Recorder
    b: Link
    heard_by_b: Recorder
    listener: Listener
    timeouts: Timeouts

    async def another(self, id: str = "c") -> tuple[Link, Recorder]:
        """One more well-behaved worker on the same listener."""
        holder, heard = self.authority.holder(id, "worker"), Recorder()
        hello = Hello(id, "worker", "data")
        address = self.listener.address
        return await dial(address, holder.client, hello, Peer("b", "worker"), heard, self.timeouts), heard

    async def assert_unharmed(self) -> None:
        """Both links of the pair still carry data both ways."""
        count_a, count_b = len(self.heard_by_a.messages), len(self.heard_by_b.messages)
        await self.a.send(slice_header(3), memoryview(b"abc"))
        await self.b.send(slice_header(3), memoryview(b"def"))
        await self.heard_by_b.until(lambda: len(self.heard_by_b.messages) > count_b)
        await self.heard_by_a.until(lambda: len(self.heard_by_a.messages) > count_a)


@asynccontextmanager
async def paired(
    folder: Path,
    timeouts: Timeouts | None = None,
    heard_by_b: Recorder | None = None,
    options: LinkOptions = DEFAULT_OPTIONS,
    listening: LinkOptions | None = None,
) -> AsyncIterator[Pair]:
    """Worker a linked to worker b; at the end everything is closed, and each end was told exactly once."""
    timeouts = timeouts or Timeouts()
    authority = TestAuthority(folder)
    dialler, server = authority.holder("a", "worker"), authority.holder("b", "worker", admit_joiners=True)
    heard_by_a, heard_by_b = Recorder(), heard_by_b or Recorder()
    own = Hello("b", "worker", "data")
    listener = await listen(
        "127.0.0.1:0", server.server, own, heard_by_b.admit, timeouts, options=listening or options
    )
    try:
        hello, expected = Hello("a", "worker", "data"), Peer("b", "worker")
        a = await dial(listener.address, dialler.client, hello, expected, heard_by_a, timeouts, options)
        await heard_by_b.until(lambda: bool(heard_by_b.links))
        yield Pair(authority, a, heard_by_a, heard_by_b.links[0], heard_by_b, listener, timeouts)
        await a.close("the test is over")
    finally:
        await listener.close()
    assert len(heard_by_a.reasons) == 1
    assert len(heard_by_b.reasons) == len(heard_by_b.links)


class Collector:
    """A sink that keeps all frames with their payloads."""

    def __init__(self) -> None:
        self.frames: list[tuple[Frame, bytes]] = []
        self._payload = bytearray()

    def begin(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        self._payload = bytearray(payload_bytes)
        return memoryview(self._payload)

    def end(self, frame: Frame, payload_bytes: int) -> None:
        self.frames.append((frame, bytes(self._payload)))


def feed(reader: FrameReader, data: bytes) -> None:
    """Give a reader bytes as a socket would."""
    rest = memoryview(data)
    while rest:
        buffer = reader.buffer()
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        reader.received(count)
        rest = rest[count:]


class RawPeer:
    """A TLS connection on which anything may be written, right or wrong."""

    def __init__(self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._input, self._output = streams
        self._collector = Collector()
        self._reader = FrameReader(self._collector)

    @classmethod
    async def connect(cls, address: str, holder: Holder, name: str = "b.worker.farflung.internal") -> RawPeer:
        """Connect with a holder's certificate and say nothing yet."""
        host, port = parse_address(address)
        return cls(await asyncio.open_connection(host, port, ssl=holder.client, server_hostname=name))

    @property
    def frames(self) -> list[tuple[Frame, bytes]]:
        """All that has come so far."""
        return self._collector.frames

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._output.write(data)

    def say(self, frame: Frame, payload: bytes = b"") -> None:
        """Write a well-formed frame."""
        self.write(encode(frame, len(payload)) + payload)

    async def read(self, holds: Callable[[], bool]) -> None:
        """Read frames until `holds`, or the other side has hung up."""
        async with asyncio.timeout(60):
            while not holds():
                data = await self._input.read(2**16)
                if not data:
                    return
                feed(self._reader, data)

    async def last_words(self) -> str:
        """The reason for which the other side closes."""
        await self.read(lambda: bool(self.frames) and isinstance(self.frames[-1][0], Close))
        last, _ = self.frames[-1]
        assert isinstance(last, Close), self.frames
        return last.reason

    def reset(self) -> None:
        """Hang up as a kernel does that knows nothing of the connection: with a reset."""
        raw = self._output.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._output.transport.abort()

    async def close(self) -> None:
        """Hang up."""
        self._output.transport.abort()
        try:
            await self._output.wait_closed()
        except OSError:
            pass


def run(test: Coroutine[Any, Any, Given]) -> Given:
    """`asyncio.run`, and nothing may be left over: no task, no transport that was not closed."""

    async def whole() -> Given:
        result = await test
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return result

    gc.freeze()  # or what else this process has loaded, torch and JAX in the end, is looked through as well
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResourceWarning)
            result = asyncio.run(whole())
            gc.collect()
    finally:
        gc.unfreeze()
    assert not caught, [str(warning.message) for warning in caught]
    return result

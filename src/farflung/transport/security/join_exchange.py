"""A connection without a client certificate: one request, one answer, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from farflung.errors import ConnectionFailed, FarflungError, ProtocolError
from farflung.text import printable
from farflung.transport.net.tls_stream import Connection
from farflung.transport.wire.frame_reader import FrameReader
from farflung.transport.wire.frames import Close, Frame, Hello, Join, Reply, closing, encode

OnStranger = Callable[[bytes, str], Awaitable[bytes]]
"""Takes a request and the HOST:PORT it came from, gives the answer back."""

REFUSAL = "this port admits only certificate holders: join the broker with a token first"


class Exchange:
    """Either side of it; the first frame that comes is all that is read."""

    def __init__(self, connection: Connection) -> None:
        self.remote = connection.remote
        self.over = asyncio.Event()
        self._connection = connection
        self._heard: asyncio.Future[tuple[Frame, bytes]] = asyncio.get_running_loop().create_future()
        self._payload = bytearray()
        self._reader = FrameReader(self)
        connection.start(self)

    async def hang_up(self) -> None:
        """Return once nothing is left of the connection."""
        self._connection.abort()
        await self.over.wait()

    async def heard(self) -> tuple[Frame, bytes]:
        """The frame that came, and its payload.

        Raises
        ------
        ProtocolError
            What came is no frame, or none that belongs here.
        ConnectionError
            The connection was lost first.
        """
        return await self._heard

    def say(self, frame: Frame, payload: bytes = b"") -> None:
        """Write a frame."""
        self._connection.write(encode(frame, len(payload)), payload)

    def buffer(self) -> memoryview:
        """Called by the connection."""
        return self._reader.buffer()

    def received(self, count: int) -> None:
        """Called by the connection."""
        try:
            self._reader.received(count)
        except ProtocolError as error:
            self._settle(error)

    def drained(self) -> None:
        """Called by the connection."""

    def lost(self, error: OSError | None) -> None:
        """Called by the connection."""
        self._settle(error or ConnectionResetError("the other side hung up"))
        self.over.set()

    def begin(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        """Called by the reader."""
        if isinstance(frame, Hello):
            raise ProtocolError(f"no certificate was shown: {REFUSAL}")
        if not isinstance(frame, Join | Reply | Close):
            raise ProtocolError(f"expected a join, found a {type(frame).__name__.lower()} frame: {REFUSAL}")
        self._payload = bytearray(payload_bytes)
        return memoryview(self._payload)

    def end(self, frame: Frame, payload_bytes: int) -> None:
        """Called by the reader."""
        self._heard.set_result((frame, bytes(self._payload)))
        self._reader.stop()

    def _settle(self, error: Exception) -> None:
        self._reader.stop()
        if not self._heard.done():
            self._heard.set_exception(error)
            # Whoever waits gets it; if nobody does any more, that is no news.
            self._heard.exception()


async def receive(exchange: Exchange, answer: OnStranger | None) -> None:
    """The listener's side: hear one request, answer it, and wait for the newcomer to hang up."""
    try:
        exchange.say(Reply(), await _answer(exchange, answer))
    except FarflungError as error:
        exchange.say(closing(str(error)))
    await exchange.over.wait()


async def _answer(exchange: Exchange, answer: OnStranger | None) -> bytes:
    frame, request = await exchange.heard()
    if answer is None or not isinstance(frame, Join):
        raise ProtocolError(REFUSAL)
    return await answer(request, exchange.remote)


async def request(exchange: Exchange, payload: bytes, address: str) -> bytes:
    """The newcomer's side: say one request and give the answer back.

    Raises
    ------
    ConnectionFailed
        The other side refused, in its words.
    ProtocolError
        It answered with something else.
    """
    exchange.say(Join(), payload)
    frame, answer = await exchange.heard()
    if isinstance(frame, Close):
        raise ConnectionFailed(f"{address} refused: {printable(frame.reason)}")
    if not isinstance(frame, Reply):
        raise ProtocolError(f"expected a reply from {address}, found a {type(frame).__name__.lower()} frame")
    return answer

"""A connection without a client certificate: one request, one answer, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from farflung.errors import ConnectionFailed, FarflungError, ProtocolError
from farflung.text import printable
from farflung.transport.net.tls_stream import TlsStream
from farflung.transport.wire.frame_reader import FrameReader
from farflung.transport.wire.frames import Close, Frame, Hello, Join, Reply, closing, encode

OnJoiner = Callable[[bytes, str], Awaitable[bytes]]
"""Called with a request and the HOST:PORT that it came from; returns the answer."""

REFUSAL = "this port admits only certificate holders: join the broker with a token first"


class Exchange:
    """Either side of a join. It reads exactly one frame."""

    def __init__(self, connection: TlsStream) -> None:
        self.remote = connection.remote
        self.closed = asyncio.Event()
        self._connection = connection
        self._first_frame: asyncio.Future[tuple[Frame, bytes]] = asyncio.get_running_loop().create_future()
        self._payload = bytearray()
        self._reader = FrameReader(self)
        connection.start(self)

    async def hang_up(self) -> None:
        """Close the connection and wait until it is gone."""
        self._connection.abort()
        await self.closed.wait()

    async def first_frame(self) -> tuple[Frame, bytes]:
        """Wait for the frame and return it with its payload.

        Raises
        ------
        ProtocolError
            The bytes are not a frame, or not one that is allowed here.
        ConnectionError
            The connection was lost first.
        """
        return await self._first_frame

    def write(self, frame: Frame, payload: bytes = b"") -> None:
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

    def on_drained(self) -> None:
        """Called by the connection."""

    def on_lost(self, error: OSError | None) -> None:
        """Called by the connection."""
        self._settle(error or ConnectionResetError("the other side hung up"))
        self.closed.set()

    def begin(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        """Called by the reader."""
        if isinstance(frame, Hello):
            raise ProtocolError(f"you sent no certificate: {REFUSAL}")
        if not isinstance(frame, Join | Reply | Close):
            raise ProtocolError(f"expected a join, found a {type(frame).__name__.lower()} frame: {REFUSAL}")
        self._payload = bytearray(payload_bytes)
        return memoryview(self._payload)

    def end(self, frame: Frame, payload_bytes: int) -> None:
        """Called by the reader."""
        self._first_frame.set_result((frame, bytes(self._payload)))
        self._reader.stop()

    def _settle(self, error: Exception) -> None:
        self._reader.stop()
        if not self._first_frame.done():
            self._first_frame.set_exception(error)
            # Mark it as retrieved: it does not matter if nothing waits any more.
            self._first_frame.exception()


async def answer_joiner(exchange: Exchange, answer: OnJoiner | None) -> None:
    """The listener's side: read one request, answer it, and wait for the joiner to hang up."""
    try:
        exchange.write(Reply(), await _answer(exchange, answer))
    except FarflungError as error:
        exchange.write(closing(str(error)))
    await exchange.closed.wait()


async def _answer(exchange: Exchange, answer: OnJoiner | None) -> bytes:
    frame, request = await exchange.first_frame()
    if answer is None or not isinstance(frame, Join):
        raise ProtocolError(REFUSAL)
    return await answer(request, exchange.remote)


async def request(exchange: Exchange, payload: bytes, address: str) -> bytes:
    """The joiner's side: send one request and return the answer.

    Raises
    ------
    ConnectionFailed
        The other side refused; the message contains its reason.
    ProtocolError
        Its answer was not a reply.
    """
    exchange.write(Join(), payload)
    frame, answer = await exchange.first_frame()
    if isinstance(frame, Close):
        raise ConnectionFailed(f"{address} refused: {printable(frame.reason)}")
    if not isinstance(frame, Reply):
        raise ProtocolError(f"expected a reply from {address}, found a {type(frame).__name__.lower()} frame")
    return answer

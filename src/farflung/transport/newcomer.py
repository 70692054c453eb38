"""A connection without a client certificate: one request, one answer, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from farflung.errors import ConnectionFailed, FarflungError, ProtocolError
from farflung.transport.frame_reader import FrameReader
from farflung.transport.frames import Close, Frame, Hello, Join, Reply, closing, encode
from farflung.transport.peer import remote_address

OnStranger = Callable[[bytes, str], Awaitable[bytes]]
"""Takes a request and the HOST:PORT it came from, gives the answer back."""

REFUSAL = "this port admits only certificate holders: join the broker with a token first"


class Exchange(asyncio.BufferedProtocol):
    """Either side of it; the first frame that comes is all that is read."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self._heard: asyncio.Future[tuple[Frame, bytes]] = asyncio.get_running_loop().create_future()
        self._payload = bytearray()
        self._reader = FrameReader(self)
        self._transport: asyncio.Transport | None = None

    def attach(self, transport: asyncio.Transport) -> None:
        """Use this connection."""
        self._transport = transport

    @property
    def remote(self) -> str:
        """HOST:PORT of the other side."""
        assert self._transport is not None
        return remote_address(self._transport)

    async def end_connection(self) -> None:
        """Hang up, if there is a connection, and return once nothing is left of it."""
        if self._transport is not None:
            self._transport.abort()
            await self.lost.wait()

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
        assert self._transport is not None
        self._transport.write(encode(frame, len(payload)) + payload)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the event loop."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the event loop."""
        if self._heard.done():
            return
        try:
            self._reader.received(nbytes)
        except ProtocolError as error:
            self._settle(error)

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
        if not self._heard.done():
            self._heard.set_result((frame, bytes(self._payload)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._settle(exc or ConnectionResetError("the other side hung up"))
        self.lost.set()

    def _settle(self, error: Exception) -> None:
        if not self._heard.done():
            self._heard.set_exception(error)
            # Whoever waits gets it; if nobody does any more, that is no news.
            self._heard.exception()


async def receive(exchange: Exchange, answer: OnStranger | None, seconds: float) -> None:
    """The listener's side: hear one request, answer it, and wait for the newcomer to hang up."""
    try:
        async with asyncio.timeout(seconds):
            try:
                exchange.say(Reply(), await _answer(exchange, answer))
            except FarflungError as error:
                exchange.say(closing(str(error)))
            await exchange.lost.wait()
    except (TimeoutError, OSError):
        pass  # A newcomer that is gone or does nothing is owed no answer.
    finally:
        await exchange.end_connection()


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
        raise ConnectionFailed(f"{address} refused: {frame.reason}")
    if not isinstance(frame, Reply):
        raise ProtocolError(f"expected a reply from {address}, found a {type(frame).__name__.lower()} frame")
    return answer

"""From an address to a TLS connection, and from there to the protocol that belongs on it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from farflung.errors import ProtocolError
from farflung.transport.addresses import parse_address
from farflung.transport.frames import closing, encode
from farflung.transport.sockets import connect
from farflung.transport.timeouts import Timeouts


class Doorway(asyncio.Protocol):
    """Takes a connection whose handshake is done, and is replaced by what `enter` makes of it.

    If `enter` raises ProtocolError the other side is told why (`refusal`), and hung up on.
    """

    def __init__(self, enter: Callable[[asyncio.Transport], asyncio.BufferedProtocol]) -> None:
        self.refusal: str | None = None
        self._enter = enter
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        assert isinstance(transport, asyncio.Transport)
        try:
            transport.set_protocol(self._enter(transport))
        except ProtocolError as error:
            self._transport = transport
            self.refusal = str(error)
            transport.write(encode(closing(self.refusal)))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._lost.set()

    async def empty(self) -> None:
        """Return once nothing is left of a connection that was refused."""
        if self._transport is not None:
            self._transport.abort()
            await self._lost.wait()


async def open_connection(
    address: str, context: ssl.SSLContext, server_hostname: str, doorway: Doorway, timeouts: Timeouts
) -> None:
    """Connect to HOST:PORT, shake hands and go through the doorway.

    Raises
    ------
    OSError
        The address cannot be reached, or TLS failed on either side.
    """
    connection = await connect(*parse_address(address), timeouts)
    await asyncio.get_running_loop().create_connection(
        lambda: doorway,
        sock=connection,
        ssl=context,
        server_hostname=server_hostname,
        ssl_handshake_timeout=timeouts.dial_seconds,
        ssl_shutdown_timeout=timeouts.close_seconds,
    )

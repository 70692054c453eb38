"""How links come about: dial a holder, listen for holders, or ask a question without a certificate."""

from __future__ import annotations

import asyncio
import ssl

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.transport import newcomer
from farflung.transport.doorway import Doorway, open_connection
from farflung.transport.failures import why_unreachable
from farflung.transport.frames import Hello
from farflung.transport.handler import Handler
from farflung.transport.link import Link
from farflung.transport.listener import Listener, listen
from farflung.transport.newcomer import Exchange, OnStranger
from farflung.transport.peer import Peer, certified_peer
from farflung.transport.timeouts import Timeouts

__all__ = ["Handler", "Hello", "Link", "Listener", "OnStranger", "Peer", "ask", "dial", "listen"]


async def dial(
    address: str, context: ssl.SSLContext, hello: Hello, expected: Peer, handler: Handler, timeouts: Timeouts
) -> Link:
    """Connect to `expected` at HOST:PORT; `hello` says who dials and what the link is for.

    `handler` is called from the moment that the caller awaits something else.

    Raises
    ------
    ConnectionFailed
        The holder cannot be reached there, somebody else can, or it refused: the message says which.
    """
    links: list[Link] = []

    def enter(transport: asyncio.Transport) -> Link:
        peer = certified_peer(transport)
        if peer != expected:
            raise ProtocolError(f"expected {expected}, found {peer or 'somebody without a certificate'}")
        links.append(Link(transport, hello, peer, timeouts, lambda link: handler, dialled=True))
        return links[0]

    doorway = Doorway(enter)
    try:
        async with asyncio.timeout(timeouts.dial_seconds):
            await open_connection(address, context, expected.name, doorway, timeouts)
            if doorway.refusal is not None:
                raise ConnectionFailed(f"{address}: {doorway.refusal}")
            return await links[0].ready()
    except BaseException as error:
        await doorway.empty()
        for link in links:
            await link.close("the dialler gave up")
        if isinstance(error, OSError):
            raise ConnectionFailed(why_unreachable(error, address, timeouts.dial_seconds)) from None
        raise


async def ask(
    address: str, context: ssl.SSLContext, server_hostname: str | None, request: bytes, timeout: float
) -> bytes:
    """Put one request (at most 8 KiB) to a listener's `on_stranger`, without a certificate of one's own.

    `timeout` bounds the whole exchange, in seconds.

    Raises
    ------
    ConnectionFailed
        The listener cannot be reached, or refused: the message gives its words.
    ProtocolError
        What answered does not speak this protocol.
    """
    exchange = Exchange()

    def enter(transport: asyncio.Transport) -> Exchange:
        certified_peer(transport)
        exchange.attach(transport)
        return exchange

    doorway = Doorway(enter)
    try:
        async with asyncio.timeout(timeout):
            await open_connection(address, context, server_hostname or "", doorway, Timeouts(timeout))
            if doorway.refusal is not None:
                raise ConnectionFailed(f"{address}: {doorway.refusal}")
            return await newcomer.request(exchange, request, address)
    except OSError as error:
        raise ConnectionFailed(why_unreachable(error, address, timeout)) from None
    finally:
        await doorway.empty()
        await exchange.end_connection()

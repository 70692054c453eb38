"""How links come about: dial a holder, listen for holders, or ask a question without a certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from functools import partial

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.transport import newcomer
from farflung.transport.addresses import parse_address
from farflung.transport.connection import Connection
from farflung.transport.failures import why_unreachable
from farflung.transport.frames import Hello
from farflung.transport.handler import Handler
from farflung.transport.lanes import More
from farflung.transport.link import Link
from farflung.transport.listener import Listener, listen
from farflung.transport.newcomer import Exchange, OnStranger
from farflung.transport.options import DEFAULT_OPTIONS, LinkOptions
from farflung.transport.peer import Peer, certified_peer
from farflung.transport.racing import AllFailed, race
from farflung.transport.sockets import connect
from farflung.transport.timeouts import Timeouts

__all__ = [
    "Handler",
    "Hello",
    "Link",
    "LinkOptions",
    "Listener",
    "OnStranger",
    "Peer",
    "ask",
    "dial",
    "dial_any",
    "dial_over",
    "listen",
]


async def dial(
    address: str,
    context: ssl.SSLContext,
    hello: Hello,
    expected: Peer,
    handler: Handler,
    timeouts: Timeouts,
    options: LinkOptions = DEFAULT_OPTIONS,
) -> Link:
    """Connect to `expected` at HOST:PORT; `hello` says who dials and what the link is for.

    `handler` is called from the moment that the caller awaits something else.

    Raises
    ------
    ConnectionFailed
        The holder cannot be reached there, somebody else can, or it refused: the message says which.
    """
    link = await _dial(address, context, hello, expected, handler, timeouts, options)
    return link.release()


async def dial_over(
    raw: socket.socket,
    address: str,
    context: ssl.SSLContext,
    hello: Hello,
    expected: Peer,
    handler: Handler,
    timeouts: Timeouts,
    options: LinkOptions = DEFAULT_OPTIONS,
    more: More | None = None,
) -> Link:
    """Greet `expected` over a connected socket; `address` is for words. Otherwise as `dial`.

    `more` makes another connection the same way, where that can be done.
    """
    link = await _greet(raw, address, context, hello, expected, handler, timeouts, options, more)
    return link.release()


async def dial_any(
    addresses: Sequence[str],
    context: ssl.SSLContext,
    hello: Hello,
    expected: Peer,
    handler: Handler,
    timeouts: Timeouts,
) -> Link:
    """Dial a holder at all its addresses, nearly at once; the first that greets stays. Else as `dial`."""

    attempts = [partial(_dial, address, context, hello, expected, handler, timeouts) for address in addresses]
    try:
        return (await race(attempts, _discard)).release()
    except AllFailed as failed:
        raise ConnectionFailed("; ".join(map(str, failed.errors)) or "it gave no address") from None


async def _dial(
    address: str,
    context: ssl.SSLContext,
    hello: Hello,
    expected: Peer,
    handler: Handler,
    timeouts: Timeouts,
    options: LinkOptions = DEFAULT_OPTIONS,
) -> Link:
    try:
        raw = await connect(*parse_address(address), timeouts, options.congestion_control)
    except OSError as error:
        raise ConnectionFailed(why_unreachable(error, address, timeouts.connect_seconds)) from None
    more = partial(_connected, address, context, expected.name, timeouts, options)
    return await _greet(raw, address, context, hello, expected, handler, timeouts, options, more)


async def _greet(
    raw: socket.socket,
    address: str,
    context: ssl.SSLContext,
    hello: Hello,
    expected: Peer,
    handler: Handler,
    timeouts: Timeouts,
    options: LinkOptions,
    more: More | None,
) -> Link:
    """A link that is not released yet."""
    link: Link | None = None
    try:
        async with asyncio.timeout(timeouts.dial_seconds):
            connection = await Connection.shake_hands(raw, context, False, expected.name)
            try:
                peer = certified_peer(connection.socket)
                if peer != expected:
                    raise ProtocolError(f"expected {expected}, found {peer or 'nobody with a certificate'}")
            except ProtocolError as error:
                connection.abort()
                raise ConnectionFailed(f"{address}: {error}") from None
            link = Link(
                connection, hello, expected, timeouts, lambda link: handler, True, options=options, more=more
            )
            return await link.greeted()
    except BaseException as error:
        if link is not None:
            await _discard(link, "the dialler gave up")
        if isinstance(error, OSError):
            raise ConnectionFailed(why_unreachable(error, address, timeouts.dial_seconds)) from None
        raise


async def _discard(link: Link, reason: str = "another address was faster") -> None:
    """Close a link that was not released: its handler hears nothing of it."""
    link.abandon(reason)
    await link.close(reason)


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
    try:
        async with asyncio.timeout(timeout):
            exchange = Exchange(await _connected(address, context, server_hostname, Timeouts(timeout)))
            try:
                return await newcomer.request(exchange, request, address)
            finally:
                await exchange.hang_up()
    except OSError as error:
        raise ConnectionFailed(why_unreachable(error, address, timeout)) from None


async def _connected(
    address: str,
    context: ssl.SSLContext,
    server_hostname: str | None,
    timeouts: Timeouts,
    options: LinkOptions = DEFAULT_OPTIONS,
) -> Connection:
    raw = await connect(*parse_address(address), timeouts, options.congestion_control)
    return await Connection.shake_hands(raw, context, False, server_hostname)

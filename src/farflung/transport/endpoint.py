"""How links come about: dial a holder, listen for holders, or ask a question without a certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from farflung.errors import AnotherAuthority, ConnectionFailed, ProtocolError
from farflung.transport.failures import is_of_another_authority, why_unreachable
from farflung.transport.handler import Handler
from farflung.transport.link.link import Link
from farflung.transport.listener import Listener, listen
from farflung.transport.net.addresses import parse_address
from farflung.transport.net.happy_eyeballs import AllFailed, race
from farflung.transport.net.sockets import connect
from farflung.transport.net.tls_stream import Connection
from farflung.transport.options import DEFAULT_OPTIONS, LinkOptions
from farflung.transport.security import join_exchange
from farflung.transport.security.join_exchange import Exchange, OnStranger
from farflung.transport.security.peer import Peer, require_peer
from farflung.transport.striping.stripe_set import More
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import Hello

__all__ = [
    "Handler",
    "Hello",
    "Link",
    "LinkOptions",
    "Listener",
    "OnStranger",
    "Peer",
    "answers",
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
    call = _Call(context, hello, expected, handler, timeouts, options)
    return (await call.dial(address)).release()


async def dial_over(
    raw: socket.socket,
    address: str,
    context: ssl.SSLContext,
    hello: Hello,
    expected: Peer,
    handler: Handler,
    timeouts: Timeouts,
) -> Link:
    """Greet `expected` over a connected socket; `address` is for words. Otherwise as `dial`."""
    call = _Call(context, hello, expected, handler, timeouts)
    return (await call.greet(raw, address, None)).release()


async def dial_any(
    addresses: Sequence[str],
    context: ssl.SSLContext,
    hello: Hello,
    expected: Peer,
    handler: Handler,
    timeouts: Timeouts,
) -> Link:
    """Dial a holder at all its addresses, nearly at once; the first that greets stays. Else as `dial`."""
    call = _Call(context, hello, expected, handler, timeouts)
    try:
        return (await race([partial(call.dial, address) for address in addresses], _discard)).release()
    except AllFailed as failed:
        raise ConnectionFailed("; ".join(map(str, failed.errors)) or "it gave no address") from None


@dataclass(frozen=True)
class _Call:
    """Who is dialled, by whom and what for, wherever that may be. The links it makes are not released yet."""

    context: ssl.SSLContext
    hello: Hello
    expected: Peer
    handler: Handler
    timeouts: Timeouts
    options: LinkOptions = DEFAULT_OPTIONS

    async def dial(self, address: str) -> Link:
        try:
            raw = await connect(*parse_address(address), self.timeouts, self.options.congestion_control)
        except OSError as error:
            raise ConnectionFailed(why_unreachable(error, address, self.timeouts.connect_seconds)) from None
        more = partial(_connected, address, self.context, self.expected.name, self.timeouts, self.options)
        return await self.greet(raw, address, more)

    async def greet(self, raw: socket.socket, address: str, more: More | None) -> Link:
        """`more` makes another connection the same way, where that can be done."""
        link: Link | None = None
        try:
            async with asyncio.timeout(self.timeouts.dial_seconds):
                connection = await Connection.shake_hands(raw, self.context, False, self.expected.name)
                self._check(connection, address)
                link = Link(
                    connection, self.hello, self.expected, self.timeouts, lambda link: self.handler, True,
                    options=self.options, more=more,
                )  # fmt: skip
                return await link.greeted()
        except BaseException as error:
            if link is not None:
                await _discard(link, "the dialler gave up")
            if isinstance(error, OSError):
                why = why_unreachable(error, address, self.timeouts.dial_seconds)
                kind = AnotherAuthority if is_of_another_authority(error) else ConnectionFailed
                raise kind(why) from None
            raise

    def _check(self, connection: Connection, address: str) -> None:
        try:
            require_peer(connection.socket, self.expected)
        except ProtocolError as error:
            connection.abort()
            raise ConnectionFailed(f"{address}: {error}") from None


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
                return await join_exchange.request(exchange, request, address)
            finally:
                await exchange.hang_up()
    except OSError as error:
        raise ConnectionFailed(why_unreachable(error, address, timeout)) from None


async def answers(address: str, context: ssl.SSLContext, expected: Peer, timeouts: Timeouts) -> bool:
    """Whether the key of `expected` is at HOST:PORT now; nothing is said there."""
    try:
        async with asyncio.timeout(timeouts.connect_seconds):
            connection = await _connected(address, context, expected.name, timeouts)
    except OSError:
        return False
    exchange = Exchange(connection)
    with suppress(
        TimeoutError
    ):  # whoever listens hangs up at once: sooner, it would look like a failure there
        async with asyncio.timeout(timeouts.close_seconds):
            await exchange.over.wait()
    await exchange.hang_up()
    return True


async def _connected(
    address: str,
    context: ssl.SSLContext,
    server_hostname: str | None,
    timeouts: Timeouts,
    options: LinkOptions = DEFAULT_OPTIONS,
) -> Connection:
    raw = await connect(*parse_address(address), timeouts, options.congestion_control)
    return await Connection.shake_hands(raw, context, False, server_hostname)

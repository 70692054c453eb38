"""Make links: dial a holder, listen for holders, or send one request without a certificate."""

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
from farflung.transport.net.tls_stream import TlsStream
from farflung.transport.options import DEFAULT_OPTIONS, LinkOptions
from farflung.transport.security import join_exchange
from farflung.transport.security.join_exchange import Exchange, OnJoiner
from farflung.transport.security.peer import Peer, require_peer
from farflung.transport.striping.stripe_set import OpenStripe
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import Hello

__all__ = [
    "Handler",
    "Hello",
    "Link",
    "LinkOptions",
    "Listener",
    "OnJoiner",
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

    `handler` is called from the moment that the caller next awaits something.

    Raises
    ------
    ConnectionFailed
        The holder cannot be reached there, another one answers, or it refused: the message says which.
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
    """Greet `expected` over a connected socket. `address` is used in messages only. Otherwise as `dial`."""
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
    """Dial a holder at all its addresses, almost at once, and keep the first that greets. Otherwise as
    `dial`; AnotherAuthority only if that is so at all of them.
    """
    call = _Call(context, hello, expected, handler, timeouts)
    try:
        return (await race([partial(call.dial, address) for address in addresses], _discard)).release()
    except AllFailed as failed:
        is_other = failed.errors and all(isinstance(error, AnotherAuthority) for error in failed.errors)
        kind = AnotherAuthority if is_other else ConnectionFailed
        raise kind("; ".join(map(str, failed.errors)) or "the holder gave no address") from None


@dataclass(frozen=True)
class _Call:
    """Arguments of a dial. Links that it makes are not released yet."""

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
        open_stripe = partial(
            _connected, address, self.context, self.expected.name, self.timeouts, self.options
        )
        return await self.greet(raw, address, open_stripe)

    async def greet(self, raw: socket.socket, address: str, open_stripe: OpenStripe | None) -> Link:
        """Make the link on a connected socket; `open_stripe`, if given, opens further connections."""
        link: Link | None = None
        try:
            async with asyncio.timeout(self.timeouts.dial_seconds):
                connection = await TlsStream.shake_hands(raw, self.context, False, self.expected.name)
                self._check(connection, address)
                link = Link(
                    connection, self.hello, self.expected, self.timeouts, lambda link: self.handler, True,
                    options=self.options, open_stripe=open_stripe,
                )  # fmt: skip
                return await link.greeted()
        except BaseException as error:
            if link is not None:
                await _discard(link, "the dialling side gave up")
            if isinstance(error, OSError):
                why = why_unreachable(error, address, self.timeouts.dial_seconds)
                kind = AnotherAuthority if is_of_another_authority(error) else ConnectionFailed
                raise kind(why) from None
            raise

    def _check(self, connection: TlsStream, address: str) -> None:
        try:
            require_peer(connection.socket, self.expected)
        except ProtocolError as error:
            connection.abort()
            raise ConnectionFailed(f"{address}: {error}") from None


async def _discard(link: Link, reason: str = "another address was faster") -> None:
    """Close a link that was not released; its handler is not called."""
    link.abandon(reason)
    await link.close(reason)


async def ask(
    address: str, context: ssl.SSLContext, server_hostname: str | None, request: bytes, timeout: float
) -> bytes:
    """Send one request (at most 8 KiB) to a listener's `on_joiner`, without a certificate.

    `timeout` bounds the whole exchange, in seconds.

    Raises
    ------
    ConnectionFailed
        The listener cannot be reached, or refused: the message contains its reason.
    ProtocolError
        The other side does not speak this protocol.
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
    """Whether the holder of `expected`'s key answers at HOST:PORT now. Sends nothing beyond the TLS
    handshake.
    """
    try:
        async with asyncio.timeout(timeouts.connect_seconds):
            connection = await _connected(address, context, expected.name, timeouts)
    except OSError:
        return False
    exchange = Exchange(connection)
    # Let the listener hang up first: if we do, its log reports a failure.
    with suppress(TimeoutError):
        async with asyncio.timeout(timeouts.close_seconds):
            await exchange.closed.wait()
    await exchange.hang_up()
    return True


async def _connected(
    address: str,
    context: ssl.SSLContext,
    server_hostname: str | None,
    timeouts: Timeouts,
    options: LinkOptions = DEFAULT_OPTIONS,
) -> TlsStream:
    raw = await connect(*parse_address(address), timeouts, options.congestion_control)
    return await TlsStream.shake_hands(raw, context, False, server_hostname)

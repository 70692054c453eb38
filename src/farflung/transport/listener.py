"""A listening port: who shows a certificate gets a link, who shows none may ask one question.

A relay's port also takes circuits, which begin with a token and not with TLS.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import weakref
from collections.abc import Callable

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.transport.failures import why_unreachable
from farflung.transport.handler import Handler
from farflung.transport.link.link import Link
from farflung.transport.net.addresses import format_address, parse_address
from farflung.transport.net.sockets import accept, ask_for_congestion_control, first_byte, listening_socket
from farflung.transport.net.tls_stream import Connection
from farflung.transport.options import DEFAULT_OPTIONS, LinkOptions
from farflung.transport.relay.circuits import MAGIC, read_hello
from farflung.transport.relay.relay import Relay
from farflung.transport.security.join_exchange import Exchange, OnStranger, receive
from farflung.transport.security.peer import Peer, certified_peer, require_peer
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import Hello, closing

_log = logging.getLogger("farflung.transport")

_MAXIMUM_ENTERING = 256
"""Connections whose certificate is not known yet, and newcomers without one; more are hung up on."""


class Listener:
    """Made by `listen`. `address` is HOST:PORT with the port that was found if 0 was asked for."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        own: Hello,
        admit: Callable[[Link], Handler],
        timeouts: Timeouts,
        on_stranger: OnStranger | None,
        options: LinkOptions,
    ) -> None:
        self.address = format_address(*listening.getsockname()[:2])
        self._listening = listening
        self._context = context
        self._own = own
        self._admit = admit
        self._timeouts = timeouts
        self._on_stranger = on_stranger
        self._options = options
        self._by_token: weakref.WeakValueDictionary[bytes, Link] = weakref.WeakValueDictionary()
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()
        self._entering: set[asyncio.Task[None]] = set()
        self._relay: Relay | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._accept_again()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return parse_address(self.address)[1]

    def keep_to(self, timeouts: Timeouts) -> None:
        """Hold whoever comes in from now on to other limits."""
        self._timeouts = timeouts

    def relay_over(self, relay: Relay) -> None:
        """Give connections that show a circuit's token to `relay`, which this closes in the end."""
        self._relay = relay

    async def take(self, raw: socket.socket, expected: Peer, path: str) -> Link:
        """Let in a peer that came by another way than this port: over a circuit, where it dials.

        Raises
        ------
        ConnectionFailed
            Whoever is at the other end is not `expected`, or said nothing in time.
        """
        try:
            async with asyncio.timeout(self._timeouts.dial_seconds):
                connection = await Connection.shake_hands(raw, self._context, True, None)
        except OSError as error:
            raise ConnectionFailed(why_unreachable(error, path, self._timeouts.dial_seconds)) from None
        try:
            require_peer(connection.socket, expected)
        except ProtocolError as error:
            connection.abort()
            raise ConnectionFailed(f"{path}: {error}") from None
        return self._link(connection, expected, path)

    async def close(self, reason: str = "this process is shutting down") -> None:
        """Close the port and every link that came in over it; returns when nothing is left of them."""
        if self._listening.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
        if self._pause is not None:
            self._pause.cancel()
        for task in self._entering:
            task.cancel()
        await asyncio.gather(*self._entering, return_exceptions=True)
        if self._relay is not None:
            await self._relay.close()
        await asyncio.gather(*(link.close(reason) for link in list(self._links)))

    def _accept_again(self) -> None:
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        raw = accept(self._listening, self._timeouts)
        if raw is None:
            # A peer that is gone again; or no descriptor is left, and the socket would wake us without end.
            asyncio.get_running_loop().remove_reader(self._listening)
            self._pause = asyncio.get_running_loop().call_later(
                self._timeouts.heartbeat_seconds, self._accept_again
            )
            return
        if len(self._entering) >= _MAXIMUM_ENTERING:
            raw.close()
            return
        task = asyncio.get_running_loop().create_task(self._enter(raw))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _enter(self, raw: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._timeouts.dial_seconds):
                if self._relay is not None and await _begins_circuit(raw):
                    await self._enter_circuit(raw, self._relay)
                    return
                connection = await Connection.shake_hands(raw, self._context, True, None)
        except OSError as error:
            _log.info("a connection did not get past the TLS handshake: %s", error)
            return
        try:
            peer = certified_peer(connection.socket)
        except ProtocolError as error:
            _log.warning("%s was not let in: %s", connection.remote, error)
            await self._converse(connection, str(error))
            return
        if peer is None:
            await self._converse(connection, None)
            return
        if peer.role == "broker":
            connection.abort()  # it wants to know whose key is here, and knows
            return
        self._link(connection, peer, "direct")

    async def _enter_circuit(self, raw: socket.socket, relay: Relay) -> None:
        token = None
        try:
            token = await read_hello(raw)
        finally:
            if token is None:
                raw.close()
        if token is not None:
            relay.admit(token, raw)

    def _link(self, connection: Connection, peer: Peer, path: str) -> Link:
        link = Link(
            connection, self._own, peer, self._timeouts, self._admit, False, options=self._options,
            find=self._by_token.get,
        )  # fmt: skip
        link.path = path
        self._links.add(link)
        if link.token is not None:
            self._by_token[link.token] = link
        return link

    async def _converse(self, connection: Connection, refusal: str | None) -> None:
        exchange = Exchange(connection)
        try:
            async with asyncio.timeout(self._timeouts.join_seconds):
                if refusal is None:
                    await receive(exchange, self._on_stranger)
                else:
                    exchange.say(closing(refusal))
                    await exchange.over.wait()
        except OSError:
            pass  # A newcomer that is gone or does nothing is owed no answer.
        finally:
            await exchange.hang_up()


async def _begins_circuit(raw: socket.socket) -> bool:
    try:
        return await first_byte(raw) == MAGIC[0]
    except BaseException:
        raw.close()
        raise


async def listen(
    address: str,
    context: ssl.SSLContext,
    own: Hello,
    admit: Callable[[Link], Handler],
    timeouts: Timeouts,
    on_stranger: OnStranger | None = None,
    options: LinkOptions = DEFAULT_OPTIONS,
) -> Listener:
    """Listen on HOST:PORT (`[::]:PORT` takes IPv4 too; port 0 finds a free one).

    Parameters
    ----------
    own
        Who this is. Its `kind` does not count: a dialler says what its connection is for.
    admit
        Called with each new link, whose peer, kind and boot are known then; gives the link's handler.
        Raising ProtocolError or its kin refuses the peer, who is told the message.
    on_stranger
        Answers the one request of somebody without a certificate; without it such are refused.

    Raises
    ------
    ConnectionFailed
        The port is in use, or the address is none of this machine.
    """
    listening = await listening_socket(*parse_address(address))
    ask_for_congestion_control(listening, options.congestion_control)
    return Listener(listening, context, own, admit, timeouts, on_stranger, options)

"""A listening port. Peers with a certificate get a link; those without may send one request.

A relay's port also accepts circuits, which begin with a token instead of TLS.
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
from farflung.transport.net.sockets import (
    ask_for_congestion_control,
    first_byte,
    listening_socket,
)
from farflung.transport.net.tls_stream import TlsStream
from farflung.transport.options import DEFAULT_OPTIONS, LinkOptions
from farflung.transport.relay.circuits import MAGIC, read_hello
from farflung.transport.relay.relay import Relay
from farflung.transport.security.join_exchange import Exchange, OnJoiner, answer_joiner
from farflung.transport.security.peer import Peer, certified_peer, require_peer
from farflung.transport.sparse_log import SparseLog
from farflung.transport.timeouts import Timeouts
from farflung.transport.unknown_peers import Proven, UnknownPeers
from farflung.transport.wire.frames import Hello, closing

_log = logging.getLogger("farflung.transport")

PROVEN_SECONDS = 1.0
"""How long a link must last to have been worth its handshake."""

MOST_UNGREETED = 32
"""Connections of one holder that have not said yet what they are for; a link may open 16 at a time."""


class Listener:
    """Made by `listen`. `address` is HOST:PORT, with the real port if port 0 was requested."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        own: Hello,
        admit: Callable[[Link], Handler],
        timeouts: Timeouts,
        on_joiner: OnJoiner | None,
        options: LinkOptions,
    ) -> None:
        self.address = format_address(*listening.getsockname()[:2])
        self._context = context
        self._own = own
        self._admit = admit
        self._timeouts = timeouts
        self._on_joiner = on_joiner
        self._options = options
        self._by_token: weakref.WeakValueDictionary[bytes, Link] = weakref.WeakValueDictionary()
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()
        self._ungreeted: dict[Peer, list[Link]] = {}
        self._sparse = SparseLog(_log)
        self._relay: Relay | None = None
        self._unknown = UnknownPeers(listening, timeouts, self._admit_connection)

    @property
    def port(self) -> int:
        """The listening port."""
        return parse_address(self.address)[1]

    def set_timeouts(self, timeouts: Timeouts) -> None:
        """Use other timeouts for connections that arrive from now on."""
        self._timeouts = self._unknown.timeouts = timeouts

    def set_context(self, context: ssl.SSLContext) -> None:
        """Use another certificate and other authorities for connections that arrive from now on."""
        self._context = context

    def set_relay(self, relay: Relay) -> None:
        """Pass connections that begin with a circuit token to `relay`, which `close` closes as well."""
        self._relay = relay

    async def accept_circuit(self, raw: socket.socket, expected: Peer, path: str) -> Link:
        """Accept a peer on a socket that did not come in over this port: it dials through a relay's circuit.

        Raises
        ------
        ConnectionFailed
            The other end is not `expected`, or did not complete the handshake in time.
        """
        try:
            async with asyncio.timeout(self._timeouts.dial_seconds):
                connection = await TlsStream.shake_hands(raw, self._context, True, None)
        except OSError as error:
            raise ConnectionFailed(why_unreachable(error, path, self._timeouts.dial_seconds)) from None
        try:
            require_peer(connection.socket, expected)
        except ProtocolError as error:
            connection.abort()
            raise ConnectionFailed(f"{path}: {error}") from None
        return self._link(connection, expected, path)

    async def close(self, reason: str = "this process is shutting down") -> None:
        """Close the port and every link that it accepted; returns when all are gone."""
        await self._unknown.close()
        if self._relay is not None:
            await self._relay.close()
        await asyncio.gather(*(link.close(reason) for link in list(self._links)))

    async def _admit_connection(self, raw: socket.socket, proven: Proven) -> None:
        try:
            async with asyncio.timeout(self._timeouts.dial_seconds):
                begins_circuit = await self._begins_circuit(raw)
                if self._relay is not None and begins_circuit:
                    await self._admit_circuit(raw, self._relay, proven)
                    return
                connection = await TlsStream.shake_hands(raw, self._context, True, None)
        except OSError as error:
            if _went_away(error):
                _log.debug("a TLS handshake ended: %s", error)
            else:
                self._sparse.write(logging.INFO, "a TLS handshake failed: %s", error)
            return
        try:
            peer = certified_peer(connection.socket)
        except ProtocolError as error:
            self._sparse.write(logging.WARNING, "refused a connection from %s: %s", connection.remote, error)
            await self._serve_joiner(connection, str(error))
            return
        if peer is None:
            await self._serve_joiner(connection, None)
            return
        if peer.role == "broker":
            proven()
            connection.abort()  # it only checks whose key is here, and has seen it now
            return
        self._prove_later(self._link(connection, peer, "direct"), proven)

    async def _admit_circuit(self, raw: socket.socket, relay: Relay, proven: Proven) -> None:
        token = None
        try:
            token = await read_hello(raw)
        finally:
            if token is None:
                raw.close()
        if token is not None:
            proven()
            relay.admit(token, raw)

    def _prove_later(self, link: Link, proven: Proven) -> None:
        """Count a link as worth its handshake if it lasts, or becomes a further connection of another."""
        link.on_over = asyncio.get_running_loop().call_later(PROVEN_SECONDS, proven).cancel

    def _link(self, connection: TlsStream, peer: Peer, path: str) -> Link:
        link = Link(
            connection, self._own, peer, self._timeouts, self._admit, False, options=self._options,
            find=self._by_token.get,
        )  # fmt: skip
        link.path = path
        self._links.add(link)
        self._limit_ungreeted(link)
        if link.token is not None:
            self._by_token[link.token] = link
        return link

    def _limit_ungreeted(self, link: Link) -> None:
        """End the oldest connection of a holder that has too many whose purpose is not known yet."""
        waiting = [one for one in self._ungreeted.get(link.peer, ()) if one.is_ungreeted]
        if len(waiting) >= MOST_UNGREETED:
            waiting.pop(0).cut_off(f"more than {MOST_UNGREETED} connections of {link.peer} sent no hello")
        self._ungreeted = {
            peer: links for peer, links in self._ungreeted.items() if any(one.is_ungreeted for one in links)
        }
        self._ungreeted[link.peer] = [*waiting, link]

    async def _begins_circuit(self, raw: socket.socket) -> bool:
        try:
            async with asyncio.timeout(self._timeouts.first_byte_seconds):
                return await first_byte(raw) == MAGIC[0]
        except BaseException:
            raw.close()
            raise

    async def _serve_joiner(self, connection: TlsStream, refusal: str | None) -> None:
        exchange = Exchange(connection)
        try:
            async with asyncio.timeout(self._timeouts.join_seconds):
                if refusal is None:
                    await answer_joiner(exchange, self._on_joiner)
                else:
                    exchange.write(closing(refusal))
                    await exchange.closed.wait()
        except OSError:
            pass  # A joiner that is gone or silent gets no answer.
        finally:
            await exchange.hang_up()


async def listen(
    address: str,
    context: ssl.SSLContext,
    own: Hello,
    admit: Callable[[Link], Handler],
    timeouts: Timeouts,
    on_joiner: OnJoiner | None = None,
    options: LinkOptions = DEFAULT_OPTIONS,
) -> Listener:
    """Listen on HOST:PORT (`[::]:PORT` includes IPv4; port 0 picks a free one).

    Parameters
    ----------
    own
        This process's hello. Its `kind` is ignored: the dialling side says what its connection is for.
    admit
        Called with each new link, whose peer, kind and boot are known by then; returns the link's handler.
        Raising ProtocolError or a subclass refuses the peer and sends it the message.
    on_joiner
        Answers the one request of a peer without a certificate. If None, such peers are refused.

    Raises
    ------
    ConnectionFailed
        The port is in use, or the address does not belong to this machine.
    """
    listening = await listening_socket(*parse_address(address))
    ask_for_congestion_control(listening, options.congestion_control)
    return Listener(listening, context, own, admit, timeouts, on_joiner, options)


def _went_away(error: OSError) -> bool:
    """Whether a handshake failed because the other side hung up: it found another address, or only looked."""
    if isinstance(error, ssl.SSLError):
        # Python itself, which names no library, found the connection closed before the handshake.
        return isinstance(error, ssl.SSLEOFError) or not getattr(error, "library", None)
    return isinstance(error, ConnectionError)

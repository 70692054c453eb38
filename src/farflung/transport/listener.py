"""A listening port: who shows a certificate gets a link, who shows none may ask one question."""

from __future__ import annotations

import asyncio
import logging
import ssl
import weakref
from collections.abc import Callable

from farflung.errors import ProtocolError
from farflung.transport.addresses import format_address, parse_address
from farflung.transport.doorway import Doorway
from farflung.transport.frames import Hello
from farflung.transport.handler import Handler
from farflung.transport.link import Link
from farflung.transport.newcomer import Exchange, OnStranger, receive
from farflung.transport.peer import certified_peer, remote_address
from farflung.transport.sockets import listening_socket, tune
from farflung.transport.timeouts import Timeouts

_log = logging.getLogger("farflung.transport")

_MAXIMUM_NEWCOMERS = 64


class Listener:
    """Made by `listen`. `address` is HOST:PORT with the port that was found if 0 was asked for."""

    def __init__(
        self,
        own: Hello,
        admit: Callable[[Link], Handler],
        timeouts: Timeouts,
        on_stranger: OnStranger | None,
    ) -> None:
        self.address = ""
        self._own = own
        self._admit = admit
        self._timeouts = timeouts
        self._on_stranger = on_stranger
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()
        self._newcomers: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return parse_address(self.address)[1]

    def address_for(self, address: str) -> str:
        """HOST:PORT of this listener as seen at another address of this machine (a link's `local`)."""
        return format_address(parse_address(address)[0], self.port)

    async def start(self, address: str, context: ssl.SSLContext) -> None:
        """Open the port; called once, by `listen`."""
        host, port = parse_address(address)
        listening = await listening_socket(host, port)
        self.address = format_address(*listening.getsockname()[:2])
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Doorway(self._enter),
            sock=listening,
            ssl=context,
            ssl_handshake_timeout=self._timeouts.dial_seconds,
            ssl_shutdown_timeout=self._timeouts.close_seconds,
        )

    def keep_to(self, timeouts: Timeouts) -> None:
        """Hold whoever comes in from now on to other limits."""
        self._timeouts = timeouts

    async def close(self, reason: str = "this process is shutting down") -> None:
        """Close the port and every link that came in over it; returns when nothing is left of them."""
        if self._server is not None:
            self._server.close()
        for task in self._newcomers:
            task.cancel()
        await asyncio.gather(*(link.close(reason) for link in list(self._links)))
        await asyncio.gather(*self._newcomers, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _enter(self, transport: asyncio.Transport) -> Link | Exchange:
        tune(transport.get_extra_info("socket"), self._timeouts)
        try:
            peer = certified_peer(transport)
            if peer is None:
                return self._receive(transport)
        except ProtocolError as error:
            _log.warning("%s was not let in: %s", remote_address(transport), error)
            raise
        link = Link(transport, self._own, peer, self._timeouts, self._admit, dialled=False)
        self._links.add(link)
        return link

    def _receive(self, transport: asyncio.Transport) -> Exchange:
        if len(self._newcomers) >= _MAXIMUM_NEWCOMERS:
            raise ProtocolError("too many newcomers at once: try again in a minute")
        exchange = Exchange()
        exchange.attach(transport)
        task = asyncio.get_running_loop().create_task(
            receive(exchange, self._on_stranger, self._timeouts.join_seconds)
        )
        self._newcomers.add(task)
        task.add_done_callback(self._newcomers.discard)
        return exchange


async def listen(
    address: str,
    context: ssl.SSLContext,
    own: Hello,
    admit: Callable[[Link], Handler],
    timeouts: Timeouts,
    on_stranger: OnStranger | None = None,
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
    listener = Listener(own, admit, timeouts, on_stranger)
    await listener.start(address, context)
    return listener

"""The side that was asked to help with a connection: dials back, or takes its end of a circuit."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from farflung.connectivity.circuits import join_circuit
from farflung.connectivity.routes import LONGEST_REASON, relay_path
from farflung.errors import FarflungError, ProtocolError
from farflung.protocol.fields import Message
from farflung.protocol.reachability import Circuit, DialBack, NotReached
from farflung.transport.endpoint import Handler, Hello, Link, Listener, Peer, dial_any
from farflung.transport.net.addresses import EVERY_INTERFACE, format_address, parse_address
from farflung.transport.timeouts import Timeouts

_log = logging.getLogger("farflung.connectivity")

MAXIMUM_AT_ONCE = 64
MAXIMUM_FOR_ONE_PEER = 4
"""More than one, because a peer that asks again may have given up its earlier request."""


class AnswererOwner(Protocol):
    """What an answerer needs from its owner."""

    @property
    def handler(self) -> Handler:
        """The handler of connections with peers."""

    def expects(self, job: str, attempt: int, peer: str) -> Peer | None:
        """The peer, if this member of the plan may connect now; else None."""

    def accept(self, link: Link) -> Handler:
        """Accept a connection on which the peer speaks first; ProtocolError refuses it."""

    def tell(self, message: Message) -> None:
        """Send a message to the broker."""


class Answerer:
    """Carries out requests that the broker passes on from peers; see `Connector` for the parameters."""

    def __init__(
        self,
        own: Hello,
        context: ssl.SSLContext,
        broker: Callable[[], str],
        owner: AnswererOwner,
        timeouts: Callable[[], Timeouts],
    ) -> None:
        self._own = msgspec.structs.replace(own, kind="reverse")
        self._context = context
        self._broker = broker
        self._owner = owner
        self._timeouts = timeouts
        self._tasks: dict[asyncio.Task[None], str] = {}

    def on_request(self, request: DialBack | Circuit, listener: Listener) -> None:
        """Begin to carry out a request; on failure, the broker gets a `NotReached`."""
        peer = self._owner.expects(request.job, request.attempt, request.peer)
        if peer is None:
            self._decline(request, "it does not work for that attempt of the job")
        elif list(self._tasks.values()).count(request.peer) >= MAXIMUM_FOR_ONE_PEER:
            self._decline(request, f"it is busy with {MAXIMUM_FOR_ONE_PEER} requests of the same peer")
        elif len(self._tasks) >= MAXIMUM_AT_ONCE:
            self._decline(request, "it is busy with other peers that cannot be reached")
        elif isinstance(request, DialBack):
            self._start(request, self._dial_back(request, peer))
        else:
            self._start(request, self._take_end(request, peer, listener))

    async def close(self) -> None:
        """Cancel requests in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, request: DialBack | Circuit, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._run(request, work))
        self._tasks[task] = request.peer
        task.add_done_callback(self._tasks.pop)

    async def _run(self, request: DialBack | Circuit, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except FarflungError as error:
            self._decline(request, str(error))

    def _decline(self, request: DialBack | Circuit, reason: str) -> None:
        _log.info("no link to %s: %s", request.peer, reason)
        answer = NotReached(
            request.number, request.job, request.attempt, request.peer, reason[:LONGEST_REASON]
        )
        self._owner.tell(answer)

    async def _dial_back(self, request: DialBack, peer: Peer) -> None:
        addresses = [self._beside_broker(address) for address in request.addresses]
        handler = self._owner.handler
        link = await dial_any(addresses, self._context, self._own, peer, handler, self._timeouts())
        link.path = "reverse"
        try:
            self._owner.accept(link)
        except ProtocolError as error:
            await link.close(str(error))

    def _beside_broker(self, address: str) -> str:
        host, port = parse_address(address)
        return format_address(parse_address(self._broker())[0], port) if host in EVERY_INTERFACE else address

    async def _take_end(self, request: Circuit, peer: Peer, listener: Listener) -> None:
        raw = await join_circuit(request, self._broker(), self._timeouts())
        await listener.accept_circuit(raw, peer, relay_path(request.relay))

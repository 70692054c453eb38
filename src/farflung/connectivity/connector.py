"""The side that wants a connection: tries one route after another, each within a bounded time."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from farflung.connectivity.circuits import join_circuit
from farflung.connectivity.routes import (
    HELPS,
    FailedRoute,
    Route,
    advice,
    describe_failures,
    relay_path,
    route_order,
)
from farflung.errors import ConnectionFailed, ProtocolError
from farflung.protocol.fields import Message
from farflung.protocol.reachability import AskCircuit, AskReverse, Circuit, NotReached
from farflung.transport.endpoint import Handler, Hello, Link, Peer, dial_any, dial_over
from farflung.transport.timeouts import Timeouts


@dataclass(frozen=True)
class ConnectRequest:
    """A peer to reach for one attempt of a job; it can be dialled at `addresses` (HOST:PORT)."""

    job: str
    attempt: int
    peer: Peer
    addresses: Sequence[str]


MAXIMUM_RELAYS = 3
"""Relays that are tried for one connection, one after another."""


@dataclass(frozen=True)
class Reached:
    """A connection, and the routes that failed before, in words."""

    link: Link
    tried: str


@dataclass(frozen=True)
class _PendingRequest:
    """A request to the broker that waits for its answer."""

    request: ConnectRequest
    handler: Handler
    answer: asyncio.Future[Link | Circuit]


class Connector:
    """Connects to peers directly, in reverse (they dial) or over a relay.

    Parameters
    ----------
    own
        This process, as it introduces itself to peers.
    context
        The TLS context for dialling.
    broker
        Returns the HOST:PORT at which this process reaches the broker, which may be a relay.
    port
        Returns the port on which this process listens, starting the listener if needed. The listener must
        pass connections of kind `reverse` to `admit`.
    tell
        Sends a message to the broker, whose answers go to `on_answer`.
    timeouts
        Returns the current timeouts.
    """

    def __init__(
        self,
        own: Hello,
        context: ssl.SSLContext,
        broker: Callable[[], str],
        port: Callable[[], Awaitable[int]],
        tell: Callable[[Message], None],
        timeouts: Callable[[], Timeouts],
    ) -> None:
        self._own = own
        self._context = context
        self._broker = broker
        self._port = port
        self._tell = tell
        self._timeouts = timeouts
        self._numbers = itertools.count()
        self._pending: dict[int, _PendingRequest] = {}
        self._last_routes: dict[Peer, tuple[str, int, Route]] = {}

    async def connect(self, request: ConnectRequest, handler: Handler) -> Reached:
        """Connect to a peer, which then waits for the first message.

        Routes are tried in the order direct, reverse, relay. If a connection of the same attempt was lost,
        its route is tried first.

        Raises
        ------
        ConnectionFailed
            All routes failed; the message says why, and what would help.
        """
        tried: list[FailedRoute] = []
        routes: dict[Route, Callable[[ConnectRequest, Handler], Awaitable[Link]]] = {
            "direct": self._direct,
            "reverse": self._reverse,
            "relay": self._relay,
        }
        for route in route_order(self._last_route(request)):
            try:
                link = await routes[route](request, handler)
            except ConnectionFailed as error:
                tried.append(FailedRoute(route, str(error)))
                continue
            self._last_routes[request.peer] = (request.job, request.attempt, route)
            return Reached(link, describe_failures(tried))
        raise ConnectionFailed(f"no route to {request.peer}: {describe_failures(tried)}{HELPS}{advice({})}")

    def on_answer(self, answer: Circuit | NotReached) -> None:
        """Handle an answer of the broker; answers that are no longer awaited are ignored."""
        pending = self._pending.get(answer.number)
        if pending is None or pending.answer.done() or answer.peer != pending.request.peer.id:
            return
        if isinstance(answer, NotReached):
            pending.answer.set_exception(ConnectionFailed(answer.reason))
        else:
            pending.answer.set_result(answer)

    def has_asked(self, peer: Peer) -> bool:
        """Whether this peer was asked to dial back."""
        return any(
            pending.request.peer == peer and not pending.answer.done() for pending in self._pending.values()
        )

    def admit(self, link: Link) -> Handler:
        """The handler for a connection of kind `reverse`; ProtocolError if its peer was not asked to dial."""
        for pending in self._pending.values():
            if pending.request.peer == link.peer and not pending.answer.done():
                link.path = "reverse"
                pending.answer.set_result(link)
                return pending.handler
        raise ProtocolError(f"{link.peer} dialled back without being asked")

    def _last_route(self, request: ConnectRequest) -> Route | None:
        job, attempt, route = self._last_routes.get(request.peer, ("", 0, None))
        return route if (job, attempt) == (request.job, request.attempt) else None

    async def _direct(self, request: ConnectRequest, handler: Handler) -> Link:
        return await dial_any(
            request.addresses, self._context, self._own, request.peer, handler, self._timeouts()
        )

    async def _reverse(self, request: ConnectRequest, handler: Handler) -> Link:
        port, number = await self._port(), next(self._numbers)
        ask = AskReverse(number, request.job, request.attempt, request.peer.id, port)
        link = await self._ask(ask, request, handler)
        if not isinstance(link, Link):
            raise ConnectionFailed("the broker answered with a circuit that was not requested")
        return _require_open(link)

    async def _relay(self, request: ConnectRequest, handler: Handler) -> Link:
        failures: list[str] = []
        without: list[str] = []
        while len(without) < MAXIMUM_RELAYS:
            number = next(self._numbers)
            ask = AskCircuit(number, request.job, request.attempt, request.peer.id, list(without))
            try:
                circuit = await self._ask(ask, request, handler)
            except ConnectionFailed as error:
                failures.append(str(error))
                break
            if isinstance(circuit, Link):  # the peer dialled back after all
                return _require_open(circuit)
            try:
                return await self._dial_circuit(circuit, request, handler)
            except ConnectionFailed as error:
                failures.append(f"{relay_path(circuit.relay)}: {error}")
                without.append(circuit.relay)
        raise ConnectionFailed("; ".join(failures))

    async def _dial_circuit(self, circuit: Circuit, request: ConnectRequest, handler: Handler) -> Link:
        """Dial the peer through a circuit, unless the other side reports that it cannot join it."""
        refusal = self._expect(circuit.number, request, handler)
        joining = asyncio.create_task(join_circuit(circuit, self._broker(), self._timeouts()))
        both: list[asyncio.Future[Any]] = [joining, refusal]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not joining.done() and isinstance(link := refusal.result(), Link):
                await _cancel_joining(joining)
                return _require_open(link)
            raw = await joining
            _abandon_late_link(refusal)
        except BaseException:
            _abandon_late_link(refusal)
            await _cancel_joining(joining)
            raise
        finally:
            self._forget(circuit.number)
        path = relay_path(circuit.relay)
        link = await dial_over(raw, path, self._context, self._own, request.peer, handler, self._timeouts())
        link.path = path
        return link

    async def _ask(
        self, ask: AskReverse | AskCircuit, request: ConnectRequest, handler: Handler
    ) -> Link | Circuit:
        answer = self._expect(ask.number, request, handler)
        self._tell(ask)
        seconds = self._timeouts().reverse_seconds
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            _abandon_late_link(answer)
            who = request.peer if isinstance(ask, AskReverse) else "the broker"
            raise ConnectionFailed(f"no answer from {who} within {seconds:g} s") from None
        except asyncio.CancelledError:
            _abandon_late_link(answer)
            raise
        finally:
            self._forget(ask.number)

    def _expect(
        self, number: int, request: ConnectRequest, handler: Handler
    ) -> asyncio.Future[Link | Circuit]:
        answer: asyncio.Future[Link | Circuit] = asyncio.get_running_loop().create_future()
        self._pending[number] = _PendingRequest(request, handler, answer)
        return answer

    def _forget(self, number: int) -> None:
        answer = self._pending.pop(number).answer
        if not answer.cancel() and not answer.cancelled():
            answer.exception()  # mark it as retrieved: it was reported already, or does not matter


async def _cancel_joining(joining: asyncio.Task[socket.socket]) -> None:
    joining.cancel()
    (joined,) = await asyncio.gather(joining, return_exceptions=True)
    if isinstance(joined, socket.socket):
        joined.close()


def _require_open(link: Link) -> Link:
    if link.reason is not None:
        raise ConnectionFailed(f"the connection was dialled back but lost: {link.reason}")
    return link


def _abandon_late_link(answer: asyncio.Future[Link | Circuit]) -> None:
    """Abandon a connection that arrived just after the request was given up."""
    if answer.done() and not answer.cancelled() and answer.exception() is None:
        link = answer.result()
        if isinstance(link, Link):
            link.abandon("it came too late")

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
from farflung.connectivity.routes import HELPS, Route, Tried, advice, order, relayed, told
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
class _Asked:
    """A request to the broker that waits for its answer."""

    errand: ConnectRequest
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
        HOST:PORT at which this process reaches the broker, which may be a relay.
    port
        Returns the port on which this process listens, starting the listener if needed. The listener must
        pass connections of kind `reverse` to `admit`.
    tell
        Sends a message to the broker, whose answers go to `hear`.
    timeouts
        Returns the current timeouts.
    """

    def __init__(
        self,
        own: Hello,
        context: ssl.SSLContext,
        broker: str,
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
        self._asked: dict[int, _Asked] = {}
        self._last: dict[Peer, tuple[str, int, Route]] = {}

    async def connect(self, errand: ConnectRequest, handler: Handler) -> Reached:
        """Connect to a peer, which then waits for the first message.

        Routes are tried in the order direct, reverse, relay. If a connection of the same attempt was lost,
        its route is tried first.

        Raises
        ------
        ConnectionFailed
            All routes failed; the message says why, and what would help.
        """
        tried: list[Tried] = []
        ways: dict[Route, Callable[[ConnectRequest, Handler], Awaitable[Link]]] = {
            "direct": self._direct,
            "reverse": self._reverse,
            "relay": self._relay,
        }
        for way in order(self._stood(errand)):
            try:
                link = await ways[way](errand, handler)
            except ConnectionFailed as error:
                tried.append(Tried(way, str(error)))
                continue
            self._last[errand.peer] = (errand.job, errand.attempt, way)
            return Reached(link, told(tried))
        raise ConnectionFailed(f"no way leads to {errand.peer}: {told(tried)}{HELPS}{advice({})}")

    def hear(self, answer: Circuit | NotReached) -> None:
        """Handle an answer of the broker; answers that are no longer awaited are ignored."""
        asked = self._asked.get(answer.number)
        if asked is None or asked.answer.done() or answer.peer != asked.errand.peer.id:
            return
        if isinstance(answer, NotReached):
            asked.answer.set_exception(ConnectionFailed(answer.reason))
        else:
            asked.answer.set_result(answer)

    def seeks(self, peer: Peer) -> bool:
        """Whether this peer was asked to dial back."""
        return any(asked.errand.peer == peer and not asked.answer.done() for asked in self._asked.values())

    def admit(self, link: Link) -> Handler:
        """The handler for a connection of kind `reverse`; ProtocolError if its peer was not asked to dial."""
        for asked in self._asked.values():
            if asked.errand.peer == link.peer and not asked.answer.done():
                link.path = "reverse"
                asked.answer.set_result(link)
                return asked.handler
        raise ProtocolError(f"{link.peer} dials back, which nobody here waits for")

    def _stood(self, errand: ConnectRequest) -> Route | None:
        job, attempt, way = self._last.get(errand.peer, ("", 0, None))
        return way if (job, attempt) == (errand.job, errand.attempt) else None

    async def _direct(self, errand: ConnectRequest, handler: Handler) -> Link:
        return await dial_any(
            errand.addresses, self._context, self._own, errand.peer, handler, self._timeouts()
        )

    async def _reverse(self, errand: ConnectRequest, handler: Handler) -> Link:
        port, number = await self._port(), next(self._numbers)
        ask = AskReverse(number, errand.job, errand.attempt, errand.peer.id, port)
        link = await self._ask(ask, errand, handler)
        if not isinstance(link, Link):
            raise ConnectionFailed("the broker answered with a circuit, which was not asked for")
        return _standing(link)

    async def _relay(self, errand: ConnectRequest, handler: Handler) -> Link:
        failures: list[str] = []
        without: list[str] = []
        while len(without) < MAXIMUM_RELAYS:
            number = next(self._numbers)
            ask = AskCircuit(number, errand.job, errand.attempt, errand.peer.id, list(without))
            try:
                circuit = await self._ask(ask, errand, handler)
            except ConnectionFailed as error:
                failures.append(str(error))
                break
            if isinstance(circuit, Link):  # the peer dialled back after all
                return _standing(circuit)
            try:
                return await self._over(circuit, errand, handler)
            except ConnectionFailed as error:
                failures.append(f"{relayed(circuit.relay)}: {error}")
                without.append(circuit.relay)
        raise ConnectionFailed("; ".join(failures))

    async def _over(self, circuit: Circuit, errand: ConnectRequest, handler: Handler) -> Link:
        """Dial the peer through a circuit, unless the other side reports that it cannot join it."""
        refusal = self._expect(circuit.number, errand, handler)
        joining = asyncio.create_task(join_circuit(circuit, self._broker, self._timeouts()))
        both: list[asyncio.Future[Any]] = [joining, refusal]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not joining.done() and isinstance(link := refusal.result(), Link):
                await _give_up(joining)
                return _standing(link)
            raw = await joining
            _drop(refusal)
        except BaseException:
            _drop(refusal)
            await _give_up(joining)
            raise
        finally:
            self._forget(circuit.number)
        path = relayed(circuit.relay)
        link = await dial_over(raw, path, self._context, self._own, errand.peer, handler, self._timeouts())
        link.path = path
        return link

    async def _ask(
        self, ask: AskReverse | AskCircuit, errand: ConnectRequest, handler: Handler
    ) -> Link | Circuit:
        answer = self._expect(ask.number, errand, handler)
        self._tell(ask)
        seconds = self._timeouts().reverse_seconds
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            _drop(answer)
            who = errand.peer if isinstance(ask, AskReverse) else "the broker"
            raise ConnectionFailed(f"no answer from {who} within {seconds:g} s") from None
        except asyncio.CancelledError:
            _drop(answer)
            raise
        finally:
            self._forget(ask.number)

    def _expect(
        self, number: int, errand: ConnectRequest, handler: Handler
    ) -> asyncio.Future[Link | Circuit]:
        answer: asyncio.Future[Link | Circuit] = asyncio.get_running_loop().create_future()
        self._asked[number] = _Asked(errand, handler, answer)
        return answer

    def _forget(self, number: int) -> None:
        answer = self._asked.pop(number).answer
        if not answer.cancel() and not answer.cancelled():
            answer.exception()  # mark it as retrieved: it was reported already, or does not matter


async def _give_up(joining: asyncio.Task[socket.socket]) -> None:
    joining.cancel()
    (joined,) = await asyncio.gather(joining, return_exceptions=True)
    if isinstance(joined, socket.socket):
        joined.close()


def _standing(link: Link) -> Link:
    if link.reason is not None:
        raise ConnectionFailed(f"the link that was dialled back was lost: {link.reason}")
    return link


def _drop(answer: asyncio.Future[Link | Circuit]) -> None:
    """Abandon a connection that arrived just after the request was given up."""
    if answer.done() and not answer.cancelled() and answer.exception() is None:
        link = answer.result()
        if isinstance(link, Link):
            link.abandon("it came too late")

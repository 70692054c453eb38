"""Finds out where workers answer: dials what they claim, once, and looks whose key is there."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Mapping

from farflung.broker.records import Worker
from farflung.broker.whereabouts import Whereabouts, may_be_tried
from farflung.transport.addresses import format_address, parse_address
from farflung.transport.endpoint import answers
from farflung.transport.peer import Peer
from farflung.transport.timeouts import Timeouts

AT_ONCE = 16
"""Dials for all workers together."""

MOST_OF_A_NAME = 4
"""Of the addresses that one name has."""

_Said = tuple[tuple[str, ...], str, str]


class Prover:
    """Strangers hear little of what a worker claims: what it says is heeded once a lease at most, and each
    address then dialled once.

    Parameters
    ----------
    context
        The broker's TLS context to dial with.
    proved
        Called with a worker, its claims, and the addresses at which its key has answered, if there are any.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        timeouts: Timeouts,
        proved: Callable[[str, tuple[str, ...], tuple[str, ...]], None],
    ) -> None:
        self._context = context
        self._timeouts = timeouts
        self._proved = proved
        self._said: dict[str, _Said] = {}
        self._tried_at: dict[str, float] = {}
        self._at_work: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    def look(self, workers: Mapping[str, Worker]) -> None:
        """Begin to prove what workers have said since the last look."""
        now = time.monotonic()
        for name, worker in workers.items():
            said = (worker.where.claims, worker.where.seen, worker.boot)
            is_early = now - self._tried_at.get(name, -float("inf")) < self._timeouts.lease_seconds
            if not worker.connected or self._said.get(name) == said or is_early or name in self._at_work:
                continue
            self._said[name] = said
            if worker.where.claims:
                self._tried_at[name] = now
                self._at_work[name] = asyncio.create_task(self._prove(name, worker.where))

    async def close(self) -> None:
        """Stop what is under way."""
        tasks = list(self._at_work.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _prove(self, name: str, where: Whereabouts) -> None:
        try:
            context = await asyncio.to_thread(self._context)
            dials = [self._answering(name, claim, where.seen, context) for claim in where.claims]
            found = await asyncio.gather(*dials)
        finally:
            del self._at_work[name]
        if proved := tuple(dict.fromkeys(address for some in found for address in some)):
            self._proved(name, where.claims, proved)

    async def _answering(self, name: str, claim: str, seen: str, context: ssl.SSLContext) -> list[str]:
        peer, answering = Peer(name, "worker"), []
        for address in await _in_numbers(claim, seen):
            async with self._room:
                if await answers(address, context, peer, self._timeouts):
                    answering.append(address)
        return answering


async def _in_numbers(claim: str, seen: str) -> list[str]:
    """The addresses behind a claim that may be tried.

    Peers are told these and no name, which could lead elsewhere by then.
    """
    host, port = parse_address(claim)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    hosts = dict.fromkeys(str(address[0]) for *_, address in found)
    return [format_address(one, port) for one in hosts if may_be_tried(one, seen)][:MOST_OF_A_NAME]

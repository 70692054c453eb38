"""Finds out where workers answer: dials what they claim, and looks whose key is there."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from farflung.broker.core.records import Worker
from farflung.broker.network.worker_addresses import WorkerAddresses, may_be_tried
from farflung.transport.addresses import format_address, parse_address
from farflung.transport.endpoint import answers
from farflung.transport.peer import Peer
from farflung.transport.timeouts import Timeouts

AT_ONCE = 16
"""Dials for all workers together."""

OF_A_WORKER = 4
"""Of these, for one worker: what it claims may take the longest to fail."""

MOST_OF_A_NAME = 4
"""Of the addresses that one name has."""

LONGEST_PAUSE_LEASES = 64

_log = logging.getLogger("farflung.broker")

_Said = tuple[tuple[str, ...], str, str]


@dataclass
class _Proof:
    """What a worker said that was heeded, when, the pause after that, and where it answered, once known."""

    said: _Said
    begun_at: float
    pause: float
    answered: tuple[str, ...] | None = None


class AddressVerifier:
    """Strangers hear little of what a worker claims: what it says is tried once, and the more often it says
    something else, the later that is heeded: after a lease, then two, in the end 64.

    Parameters
    ----------
    context
        The broker's TLS context to dial with.
    proved
        Called with a worker, its claims, and the addresses at which its key has answered, as long as other
        ones are known of it.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        timeouts: Timeouts,
        proved: Callable[[str, tuple[str, ...], tuple[str, ...]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._timeouts = timeouts
        self._proved = proved
        self._clock = clock
        self._proofs: dict[str, _Proof] = {}
        self._at_work: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)
        # Not the loop's own threads, which store decisions: names may lead to a server that never answers.
        self._names = ThreadPoolExecutor(2, thread_name_prefix="farflung-names")

    def look(self, workers: Mapping[str, Worker]) -> None:
        """Tell what was proved, and begin to prove what workers have said since the last look."""
        for name, worker in workers.items():
            if worker.connected and name not in self._at_work:
                self._heed(name, worker)

    async def close(self) -> None:
        """Stop what is under way."""
        tasks = list(self._at_work.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._names.shutdown(wait=False, cancel_futures=True)

    def _heed(self, name: str, worker: Worker) -> None:
        said = (worker.where.claims, worker.where.seen, worker.boot)
        known = self._proofs.get(name)
        if known is not None and known.said == said:
            if known.answered is not None and known.answered != worker.where.proved:
                self._proved(name, worker.where.claims, known.answered)
            return
        now = self._clock()
        if worker.where.claims and (known is None or now >= known.begun_at + known.pause):
            proof = self._proofs[name] = _Proof(said, now, self._pause(known, now))
            self._at_work[name] = asyncio.create_task(self._prove(name, worker.where, proof))

    def _pause(self, known: _Proof | None, now: float) -> float:
        """Twice the last one, less what the worker waited beyond it."""
        lease = self._timeouts.lease_seconds
        pause = lease if known is None else 3 * known.pause - (now - known.begun_at)
        return min(max(pause, lease), LONGEST_PAUSE_LEASES * lease)

    async def _prove(self, name: str, where: WorkerAddresses, proof: _Proof) -> None:
        try:
            context = await asyncio.to_thread(self._context)
            proof.answered = await self._answering(name, await self._in_numbers(where), context)
        except Exception:  # nobody waits for this task
            _log.exception("what %s claims could not be proved", name)
        finally:
            del self._at_work[name]

    async def _answering(self, name: str, addresses: list[str], context: ssl.SSLContext) -> tuple[str, ...]:
        own_room = asyncio.Semaphore(OF_A_WORKER)

        async def dial(address: str) -> bool:
            async with own_room, self._room:
                return await answers(address, context, Peer(name, "worker"), self._timeouts)

        async with asyncio.TaskGroup() as group:
            dials = {address: group.create_task(dial(address)) for address in addresses}
        return tuple(address for address, task in dials.items() if task.result())

    async def _in_numbers(self, where: WorkerAddresses) -> list[str]:
        """The addresses behind claims that may be tried; all names have `connect_seconds` together.

        Peers are told these and no name, which could lead elsewhere by then.
        """
        found: list[str] = []
        with suppress(TimeoutError):
            async with self._room, asyncio.timeout(self._timeouts.connect_seconds):
                for host, port in sorted(map(parse_address, where.claims), key=_is_name):
                    hosts = await self._looked_up(host) if _is_name((host, port)) else [host]
                    may = [format_address(one, port) for one in hosts if may_be_tried(one, where.seen)]
                    found += may[:MOST_OF_A_NAME]
        return list(dict.fromkeys(found))

    async def _looked_up(self, host: str) -> list[str]:
        look_up = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._names, look_up)
        except (OSError, ValueError):  # no such name, or none at all: IDNA refuses it, a NUL is in it
            return []
        return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _is_name(address: tuple[str, int]) -> bool:
    host, _ = address
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return "%" in host  # whether there is such an interface is for the system to say

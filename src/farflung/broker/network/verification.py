"""Verify the addresses that workers claim: dial them and check whose key answers."""

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
from farflung.broker.network.worker_addresses import WorkerAddresses, may_dial
from farflung.transport.endpoint import answers
from farflung.transport.net.addresses import format_address, parse_address
from farflung.transport.security.peer import Peer
from farflung.transport.timeouts import Timeouts

MAXIMUM_DIALS = 16
"""Concurrent dials for all workers together."""

MAXIMUM_DIALS_PER_WORKER = 4
"""Concurrent dials for one worker, because false claims can take very long to fail."""

MAXIMUM_ADDRESSES_PER_NAME = 4
"""Addresses that are tried for one host name."""

MAXIMUM_PAUSE_LEASES = 64

_log = logging.getLogger("farflung.broker")

_Claims = tuple[tuple[str, ...], str, str]


@dataclass
class _Verification:
    """The claims last verified, when that began, the pause after it, and the result, once known."""

    claims: _Claims
    started_at: float
    pause: float
    verified: tuple[str, ...] | None = None


class AddressVerifier:
    """Dials claimed addresses once, and changed claims at growing intervals.

    A worker that keeps changing its claims could use the broker to dial strangers. So each change is tried
    later than the one before: after one lease, then two, and at most 64.

    Parameters
    ----------
    context
        Returns the broker's TLS context for dialling.
    proved
        Called with a worker, its claims, and the addresses at which its key answered, until the worker's
        state shows these addresses.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        timeouts: Timeouts,
        verified: Callable[[str, tuple[str, ...], tuple[str, ...]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._timeouts = timeouts
        self._on_verified = verified
        self._clock = clock
        self._verifications: dict[str, _Verification] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._dial_slots = asyncio.Semaphore(MAXIMUM_DIALS)
        # Not the loop's own threads, which store decisions: a name server may never answer.
        self._resolver = ThreadPoolExecutor(2, thread_name_prefix="farflung-names")

    def update(self, workers: Mapping[str, Worker]) -> None:
        """Report results, and begin to verify new claims; called every heartbeat."""
        for name, worker in workers.items():
            if worker.connected and name not in self._tasks:
                self._verify_changes(name, worker)

    async def close(self) -> None:
        """Cancel verifications in progress."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._resolver.shutdown(wait=False, cancel_futures=True)

    def _verify_changes(self, name: str, worker: Worker) -> None:
        claims = (worker.where.claims, worker.where.seen, worker.boot)
        known = self._verifications.get(name)
        if known is not None and known.claims == claims:
            if known.verified is not None and known.verified != worker.where.verified:
                self._on_verified(name, worker.where.claims, known.verified)
            return
        now = self._clock()
        if worker.where.claims and (known is None or now >= known.started_at + known.pause):
            verification = self._verifications[name] = _Verification(claims, now, self._pause(known, now))
            self._tasks[name] = asyncio.create_task(self._run(name, worker.where, verification))

    def _pause(self, known: _Verification | None, now: float) -> float:
        """Twice the last pause, less the time that the worker waited beyond it."""
        lease = self._timeouts.lease_seconds
        pause = lease if known is None else 3 * known.pause - (now - known.started_at)
        return min(max(pause, lease), MAXIMUM_PAUSE_LEASES * lease)

    async def _run(self, name: str, where: WorkerAddresses, verification: _Verification) -> None:
        try:
            context = await asyncio.to_thread(self._context)
            verification.verified = await self._dial_all(name, await self._resolve(where), context)
        except Exception:  # no other task awaits this one
            _log.exception("the addresses of %s could not be verified", name)
        finally:
            del self._tasks[name]

    async def _dial_all(self, name: str, addresses: list[str], context: ssl.SSLContext) -> tuple[str, ...]:
        worker_slots = asyncio.Semaphore(MAXIMUM_DIALS_PER_WORKER)

        async def dial(address: str) -> bool:
            async with worker_slots, self._dial_slots:
                return await answers(address, context, Peer(name, "worker"), self._timeouts)

        async with asyncio.TaskGroup() as group:
            dials = {address: group.create_task(dial(address)) for address in addresses}
        return tuple(address for address, task in dials.items() if task.result())

    async def _resolve(self, where: WorkerAddresses) -> list[str]:
        """Resolve claims to addresses that may be tried; all lookups together may take `connect_seconds`.

        Peers get these numeric addresses, because a name could resolve differently later.
        """
        resolved: list[str] = []
        with suppress(TimeoutError):
            async with self._dial_slots, asyncio.timeout(self._timeouts.connect_seconds):
                for host, port in sorted(map(parse_address, where.claims), key=_is_name):
                    hosts = await self._look_up(host) if _is_name((host, port)) else [host]
                    may = [format_address(one, port) for one in hosts if may_dial(one, where.seen)]
                    resolved += may[:MAXIMUM_ADDRESSES_PER_NAME]
        return list(dict.fromkeys(resolved))

    async def _look_up(self, host: str) -> list[str]:
        look_up = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        try:
            resolved = await asyncio.get_running_loop().run_in_executor(self._resolver, look_up)
        except (OSError, ValueError):  # an unknown name, or an invalid one (IDNA refuses it, it has a NUL)
            return []
        return list(dict.fromkeys(str(address[0]) for *_, address in resolved))


def _is_name(address: tuple[str, int]) -> bool:
    host, _ = address
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return "%" in host  # only the system knows whether there is such an interface

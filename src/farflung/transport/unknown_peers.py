"""Connections to a listening socket that have not shown yet who they are: how many shake hands, and when."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from functools import partial

from farflung.transport.deferral import PER_SECOND, Budgets, Deferred
from farflung.transport.handshakes import Handshakes
from farflung.transport.net.sockets import accept, peer_host
from farflung.transport.sparse_log import SparseLog
from farflung.transport.timeouts import Timeouts

Proven = Callable[[], None]
"""To be called once a connection has proven to be of use."""

Admit = Callable[[socket.socket, Proven], Coroutine[None, None, None]]
"""Shakes hands on an accepted socket, which it closes if that fails."""

_log = logging.getLogger("farflung.transport")


class UnknownPeers:
    """Accepts connections and has `admit` shake hands with them, within the limits of their sources."""

    def __init__(self, listening: socket.socket, timeouts: Timeouts, admit: Admit) -> None:
        self.timeouts = timeouts
        self._listening = listening
        self._admit = admit
        self._handshakes = Handshakes[asyncio.Task[None]]()
        self._budgets = Budgets()
        self._deferred = Deferred[socket.socket]()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sparse = SparseLog(_log)
        self._pause: asyncio.TimerHandle | None = None
        self._next: asyncio.TimerHandle | None = None
        self._accept_again()

    async def close(self) -> None:
        """Close the port, and the connections that are on their way; returns when these are gone."""
        if self._listening.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
        for timer in (self._pause, self._next):
            if timer is not None:
                timer.cancel()
        for raw in self._deferred.drain():
            raw.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept_again(self) -> None:
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        raw = accept(self._listening, self.timeouts)
        if raw is None:
            # The peer is gone again; or no file descriptor is left, and the socket would wake us endlessly.
            asyncio.get_running_loop().remove_reader(self._listening)
            self._pause = asyncio.get_running_loop().call_later(
                self.timeouts.heartbeat_seconds, self._accept_again
            )
            return
        host = peer_host(raw)
        if self._deferred.holds(host) or self._budgets.is_spent(host, time.monotonic()):
            self._defer(raw, host)
        else:
            self._begin(raw, host)

    def _defer(self, raw: socket.socket, host: str) -> None:
        self._sparse.write(
            logging.WARNING, "too many connections from %s came to nothing: more must wait", host
        )
        dropped = self._deferred.add(raw, host)
        if dropped is not None:
            dropped.close()
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(1 / PER_SECOND, self._begin_due)

    def _begin_due(self) -> None:
        for raw, host in self._deferred.due(self._budgets, time.monotonic()):
            self._begin(raw, host)
        again = len(self._deferred) > 0
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(1 / PER_SECOND, self._begin_due) if again else None

    def _begin(self, raw: socket.socket, host: str) -> None:
        self._budgets.spend(host, time.monotonic())
        task = asyncio.get_running_loop().create_task(self._admit(raw, partial(self._proven, host)))
        self._tasks.add(task)
        task.add_done_callback(partial(self._finished, raw))
        if oldest := self._handshakes.add(task, host):
            oldest.cancel()
            self._sparse.write(
                logging.WARNING, "too many connections do not say who they are, also from %s", host
            )

    def _proven(self, host: str) -> None:
        self._budgets.restore(host, time.monotonic())

    def _finished(self, raw: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._handshakes.discard(task)
        if task.cancelled():
            raw.close()  # it may never have begun

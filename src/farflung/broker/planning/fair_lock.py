"""A lock that serves waiting submitters round-robin."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairLock:
    """A lock under which a submitter with many jobs delays another submitter by at most one of them.

    Requests of one submitter are served in order. A cancelled request does not change the order of others.
    """

    def __init__(self) -> None:
        self._held = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by submitter, next one first

    @asynccontextmanager
    async def turn(self, submitter: str) -> AsyncIterator[None]:
        """Hold the lock for one job of `submitter`."""
        await self._wait(submitter)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, submitter: str) -> None:
        if not self._held:
            self._held = True
            return
        called = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(submitter, deque()).append(called)
        try:
            await called
        except asyncio.CancelledError:
            if called.cancelled():
                self._leave(submitter, called)
            else:  # called and cancelled at once: pass the turn on
                self._pass_on()
            raise

    def _leave(self, submitter: str, called: asyncio.Future[None]) -> None:
        queue = self._waiting.get(submitter)
        if queue and called in queue:
            queue.remove(called)
            if not queue:
                del self._waiting[submitter]

    def _pass_on(self) -> None:
        while self._waiting:
            submitter = next(iter(self._waiting))
            queue = self._waiting.pop(submitter)
            called = queue.popleft()
            if queue:
                self._waiting[submitter] = queue  # again after all others
            if not called.done():
                called.set_result(None)
                return
        self._held = False

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
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by submitter, next one first

    @asynccontextmanager
    async def turn(self, submitter: str) -> AsyncIterator[None]:
        """Hold the lock for one job of `submitter`."""
        await self._wait(submitter)
        try:
            yield
        finally:
            self._give_next_turn()

    async def _wait(self, submitter: str) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn_given = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(submitter, deque()).append(turn_given)
        try:
            await turn_given
        except asyncio.CancelledError:
            if turn_given.cancelled():
                self._leave(submitter, turn_given)
            else:  # called and cancelled at once: pass the turn on
                self._give_next_turn()
            raise

    def _leave(self, submitter: str, turn_given: asyncio.Future[None]) -> None:
        queue = self._waiting.get(submitter)
        if queue and turn_given in queue:
            queue.remove(turn_given)
            if not queue:
                del self._waiting[submitter]

    def _give_next_turn(self) -> None:
        while self._waiting:
            submitter = next(iter(self._waiting))
            queue = self._waiting.pop(submitter)
            turn_given = queue.popleft()
            if queue:
                self._waiting[submitter] = queue  # again after all others
            if not turn_given.done():
                turn_given.set_result(None)
                return
        self._is_taken = False

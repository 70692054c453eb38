"""Who was forked by a nursery, with what a fleet needs of `asyncio.subprocess.Process`."""

from __future__ import annotations

import asyncio
import signal

from farflung.local.nursery import Forked


class ForkedProcess:
    """A forked process on this event loop."""

    def __init__(self, forked: Forked) -> None:
        self._forked = forked
        self._loop = asyncio.get_running_loop()
        self._born: asyncio.Future[int | None] = self._loop.create_future()
        self._over: asyncio.Future[int | None] = self._loop.create_future()
        self._listen()

    async def process_id(self) -> int | None:
        """Its process id, once it runs; None if it never did."""
        return await asyncio.shield(self._born)

    async def wait(self) -> int | None:
        """Wait for its end; the code, or None where nobody was there to see it."""
        return await asyncio.shield(self._over)

    def kill(self) -> None:
        """End it at once, if it runs."""
        self._forked.signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end, if it runs."""
        self._forked.signal(signal.SIGTERM)

    @property
    def is_born(self) -> bool:
        """Whether it ever ran, or never will."""
        return self._born.done()

    def _listen(self) -> None:
        descriptor = self._forked.fileno()
        self._loop.add_reader(descriptor, self._hear, descriptor)

    def _hear(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._forked.hear()
        is_over = self._forked.is_over
        if not self._born.done() and (is_over or self._forked.process_id is not None):
            self._born.set_result(self._forked.process_id)
        if is_over:
            self._over.set_result(self._forked.code)
        else:
            self._listen()

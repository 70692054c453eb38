"""`LoopThread`: an event loop on a thread of its own, beside any loop that the program may run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from farflung.errors import JobError

Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines for other threads, until `close`. The thread ends with the program."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine there and return its result; if this is interrupted, it is cancelled.

        Raises
        ------
        JobError
            An observer waits here, which would never end.
        """
        try:
            self.require_can_wait()
        except JobError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a coroutine there, which must not raise."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def post(self, call: Callable[[], object]) -> None:
        """Call a function there soon; without effect once the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def require_can_wait(self) -> None:
        """Raise JobError on this very thread: what it waited for would never come."""
        if threading.current_thread() is self._thread:
            raise JobError(
                "an observer is called on the fleet's event loop and cannot wait for it: wait in another"
                " thread; run.stop() ends a run from here"
            )

    def close(self) -> None:
        """Cancel what still runs, and end the thread; a second call does nothing."""
        self.post(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

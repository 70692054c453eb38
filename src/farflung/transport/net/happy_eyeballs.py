"""Try several attempts at almost the same time, and keep the first that succeeds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from farflung.transport.timeouts import STAGGER_SECONDS

Result = TypeVar("Result")


class AllFailed(Exception):
    """No attempt succeeded: `errors` are in the order of the attempts."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = errors


async def race(
    attempts: Sequence[Callable[[], Coroutine[Any, Any, Result]]],
    discard: Callable[[Result], Coroutine[Any, Any, None]],
) -> Result:
    """The result of the first attempt that succeeds; results of others go to `discard`.

    An attempt starts when the one before has failed, or has run for `STAGGER_SECONDS` (RFC 8305). The others
    are cancelled when one succeeds, and all of them when the caller is.

    Raises
    ------
    AllFailed
        Every attempt failed, or there was none.
    """
    return await _Race(attempts, discard).run()


class _Race(Generic[Result]):
    def __init__(
        self,
        attempts: Sequence[Callable[[], Coroutine[Any, Any, Result]]],
        discard: Callable[[Result], Coroutine[Any, Any, None]],
    ) -> None:
        self._waiting = deque(attempts)
        self._discard = discard
        self._begun: list[asyncio.Task[Result]] = []

    async def run(self) -> Result:
        winner: asyncio.Task[Result] | None = None
        try:
            while winner is None and (self._waiting or self._running()):
                if self._waiting:
                    self._begun.append(asyncio.create_task(self._waiting.popleft()()))
                pause = STAGGER_SECONDS if self._waiting else None
                await asyncio.wait(self._running(), timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                winner = next((task for task in self._begun if _worked(task)), None)
        finally:
            await self._clear(winner)
        if winner is None:
            errors = [task.exception() for task in self._begun]
            raise AllFailed([error for error in errors if isinstance(error, Exception)])
        return winner.result()

    def _running(self) -> list[asyncio.Task[Result]]:
        return [task for task in self._begun if not task.done()]

    async def _clear(self, winner: asyncio.Task[Result] | None) -> None:
        others = [task for task in self._begun if task is not winner]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.gather(*(self._discard(task.result()) for task in others if _worked(task)))


def _worked(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None

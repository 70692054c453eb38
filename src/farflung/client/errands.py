"""What a submitter has under way beside its queue: loading, feeding, bringing the weights home."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from farflung.client.events import Trouble

Errand = Callable[[], Coroutine[None, None, None]]


class Errands:
    """Runs errands side by side; `hear` is told of each that fails."""

    def __init__(self, hear: Callable[[Trouble], None]) -> None:
        self._hear = hear
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, errand: Errand, collect: bool) -> None:
        """Start an errand; if it fails, `collect` says whether the weights can still come home.

        It is a function, not its coroutine: stopped before its first step, it is never called.
        """
        self._tasks.append(asyncio.create_task(self._watched(errand, collect)))

    def stop(self) -> None:
        """End all of them as soon as they wait for something."""
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Wait until all of them are over, however they ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watched(self, errand: Errand, collect: bool) -> None:
        try:
            await errand()
        except Exception as error:
            self._hear(Trouble(_first(error), collect))


def _first(error: BaseException) -> BaseException:
    """The first error of a task group, where it is one."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error

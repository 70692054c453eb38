"""What may happen to a submitter: words of the broker, links that are lost, events of its own side.

What a submitter has under way beside its queue: loading, feeding, bringing the weights home.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from farflung.client.run.broker_client import Lost
from farflung.protocol.messages import Message


@dataclass(frozen=True)
class Trouble:
    """Something on this side went wrong; `collect` says whether the weights can still come home."""

    error: BaseException
    collect: bool


@dataclass(frozen=True)
class Stop:
    """The user wants an end."""

    reason: str


@dataclass(frozen=True)
class Gone:
    """Something the job stands on is gone."""

    reason: str


@dataclass(frozen=True)
class Written:
    """The trained weights are in the run folder."""


Event = Message | Lost | Trouble | Stop | Gone | Written


BackgroundTask = Callable[[], Coroutine[None, None, None]]


class BackgroundTasks:
    """Runs errands side by side; `hear` is told of each that fails."""

    def __init__(self, hear: Callable[[Trouble], None]) -> None:
        self._hear = hear
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, errand: BackgroundTask, collect: bool) -> None:
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

    async def _watched(self, errand: BackgroundTask, collect: bool) -> None:
        try:
            await errand()
        except Exception as error:
            self._hear(Trouble(_first(error), collect))


def _first(error: BaseException) -> BaseException:
    """The first error of a task group, where it is one."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error

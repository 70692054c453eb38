"""Events of a submitter's run: messages of the broker, lost links, and events on its own side.

`BackgroundTasks` runs what takes long beside the event queue: loading, feeding, collecting the weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from farflung.client.run.broker_client import Lost
from farflung.protocol.messages import Message


@dataclass(frozen=True)
class TaskFailed:
    """A background task failed; `collect` says whether the weights can still be collected."""

    error: BaseException
    collect: bool


@dataclass(frozen=True)
class Stop:
    """The user asked to stop."""

    reason: str


@dataclass(frozen=True)
class AttemptLost:
    """An attempt lost the link to a worker, or cannot reach one (then `worker` is empty)."""

    attempt: int
    reason: str
    worker: str = ""


@dataclass(frozen=True)
class LinksOverdue:
    """A lease after an attempt lost a worker, the broker has not ended it: the worker may be well."""

    attempt: int
    reason: str


@dataclass(frozen=True)
class BrokerBack:
    """There is a session with the broker again."""


@dataclass(frozen=True)
class BrokerGivenUp:
    """The broker did not come back as long as the run has patience."""

    reason: str


@dataclass(frozen=True)
class Leave:
    """This process has to end, and the job goes on without it."""

    reason: str


@dataclass(frozen=True)
class FleetLost:
    """A worker or process that the job depends on is gone."""

    reason: str


@dataclass(frozen=True)
class WeightsSaved:
    """The trained weights, as an attempt left them after `step` steps, are in the run folder."""

    attempt: int
    step: int


Event = (
    Message
    | Lost
    | BrokerBack
    | BrokerGivenUp
    | AttemptLost
    | LinksOverdue
    | TaskFailed
    | Stop
    | Leave
    | FleetLost
    | WeightsSaved
)


BackgroundTask = Callable[[], Coroutine[None, None, None]]


class BackgroundTasks:
    """Runs tasks concurrently; `on_failure` is called for each one that fails."""

    def __init__(self, on_failure: Callable[[TaskFailed], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, task: BackgroundTask, collect: bool) -> None:
        """Start a task; if it fails, `collect` says whether the weights can still be collected.

        It takes a function, not a coroutine: a task that is stopped before its first step never calls it.
        """
        made = asyncio.create_task(self._watched(task, collect))
        self._tasks.add(made)
        made.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Wait until all tasks have ended, whether they failed or not."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watched(self, task: BackgroundTask, collect: bool) -> None:
        try:
            await task()
        except Exception as error:
            self._on_failure(TaskFailed(first_error(error), collect))


def first_error(error: BaseException) -> BaseException:
    """The first error of an exception group, or the error itself."""
    return first_error(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error

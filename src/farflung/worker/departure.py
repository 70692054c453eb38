"""The end of a worker's process in good order: asked for by its owner, or by an operator at the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farflung.protocol.membership import WITHIN_SECONDS
from farflung.worker.events import Event, Exit, Leave, LeftBehind


class Departure:
    """Asks a worker's state machine to leave, and waits until the worker may end.

    Its share goes to others within `within_seconds`, by the broker's clock. If the broker stays silent for
    longer than that and a grace, the worker ends by itself.
    """

    def __init__(self, within_seconds: int = WITHIN_SECONDS) -> None:
        self._within = within_seconds
        self._step: Callable[[Event], None] | None = None
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()
        self._reason = ""

    def attach(self, step: Callable[[Event], None], grace_seconds: float) -> None:
        """The worker runs: events are given to `step`."""
        self._step, self._grace = step, grace_seconds

    def ask(self) -> bool:
        """Let the worker leave; returns whether it runs, and so has anything to hand over."""
        if self._step is None:
            return False
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + self._within
        self._timer = loop.call_at(self._deadline + self._grace, self._step, LeftBehind())
        self._step(Leave(self._within))
        return True

    @property
    def seconds_left(self) -> int | None:
        """The time in which the worker's share may still go to others; None if it does not leave."""
        if self._deadline is None:
            return None
        return max(0, round(self._deadline - asyncio.get_running_loop().time()))

    def end(self, command: Exit) -> None:
        """The worker may end."""
        self._reason = self._reason or command.reason
        self._over.set()

    async def wait(self) -> str:
        """Wait until the worker may end; why."""
        try:
            await self._over.wait()
            return self._reason
        finally:
            if self._timer is not None:
                self._timer.cancel()

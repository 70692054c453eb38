"""The end of a worker's process in good order: asked for by its owner, or by an operator at the broker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from farflung.errors import RunFailed
from farflung.protocol.membership import WITHIN_SECONDS
from farflung.worker.events import Event, Exit, Leave, LeftBehind

log = logging.getLogger("farflung.worker")

REMINDER_SECONDS = 30.0


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
        self._reminder: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()
        self._command: Exit | None = None

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
        self._reminder = loop.call_later(REMINDER_SECONDS, self._remind)
        return True

    def _remind(self) -> None:
        """Say that the worker still waits, and until when: nothing else may be said for minutes."""
        left = self.seconds_left or 0
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
        log.info(
            "not gone yet: no other worker has all that it holds; it leaves at %s all the same"
            " (`farflung status` says what it waits for)",
            until,
        )
        self._reminder = asyncio.get_running_loop().call_later(2 * REMINDER_SECONDS, self._remind)

    @property
    def seconds_left(self) -> int | None:
        """The time in which the worker's share may still go to others; None if it does not leave."""
        if self._deadline is None:
            return None
        return max(0, round(self._deadline - asyncio.get_running_loop().time()))

    def end(self, command: Exit) -> None:
        """The worker may end."""
        self._command = self._command or command
        self._over.set()

    async def wait(self) -> str:
        """Wait until the worker may end; why.

        Raises
        ------
        RunFailed
            It leaves without handing over what it holds.
        """
        try:
            await self._over.wait()
        finally:
            for timer in (self._timer, self._reminder):
                if timer is not None:
                    timer.cancel()
        assert self._command is not None
        if not self._command.in_order:
            raise RunFailed(f"this worker leaves without handing over: {self._command.reason}")
        return self._command.reason

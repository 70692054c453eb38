"""How a run finds back to its job: after the broker was lost, and after the links to its workers were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farflung.client.run.connection import Connection
from farflung.client.run.events import (
    AttemptLost,
    BackgroundTasks,
    BrokerBack,
    BrokerGivenUp,
    Event,
    LinksOverdue,
)
from farflung.errors import ConnectionFailed, FarflungError, IdentityError, RunFailed
from farflung.protocol.messages import Denied, Return

MOST_IN_VAIN = 5
"""After so many returns in a row without links, and without a unit decided since, the run fails."""

MOST_DENIED = 5
"""How often a return is said again while another session of this submitter may have died a moment ago."""


class PlaceGone(FarflungError):
    """The job whose submitter's place a run was to take is over, or its broker does not know it."""


class RunLeft(RunFailed):
    """This process ends without its job, which the broker holds."""

    exit_code = 129


class Returns:
    """Whether the broker knows this process as the job's submitter, and what is done until it does.

    `post` puts an event into the run's queue; `tasks` are those that outlive attempts. A run waits at most
    `patience_seconds` for a lost broker.

    Attributes
    ----------
    is_awaited : Whether a `Return` is not answered yet; what comes before that was said to the one before.
    is_repeating : Whether the broker, after its answer, repeats what this process has missed.
    has_returned : Whether there has been any return.
    away : The workers that the broker waits for, as it last said.
    """

    def __init__(
        self,
        connection: Connection,
        post: Callable[[Event], None],
        tasks: BackgroundTasks,
        patience_seconds: int,
    ) -> None:
        self._connection = connection
        self._post = post
        self._tasks = tasks
        self.patience_seconds = patience_seconds
        self._overdue: asyncio.TimerHandle | None = None
        self._in_vain = 0
        self._denied = 0
        self._links_lost = ""
        self.is_awaited = self.is_repeating = self.has_returned = False
        self.away: frozenset[str] = frozenset()

    def redial(self) -> None:
        """Open another session with the broker; `BrokerBack` or `BrokerGivenUp` follows."""
        self.stop_waiting()
        self._tasks.begin(self._redial, collect=False)

    def say(self, job: str, attempt: int, unit: int) -> None:
        """Return to the job with the links of `attempt`, 0 if none; `unit` is the first unrecorded one."""
        self.is_awaited, self.is_repeating, self.has_returned = True, False, True
        self._connection.introduce(Return(job, attempt, unit))

    def answered(self) -> None:
        """The broker takes this process as the submitter; what it has missed follows."""
        self.is_awaited, self.is_repeating, self._denied = False, True, 0

    def denied(self, denied: Denied) -> bool:
        """Whether the return will be said again, as another session may have died a moment ago."""
        self._denied += 1
        if not (self.is_awaited and denied.for_now and self._denied < MOST_DENIED):
            return False
        loop = asyncio.get_running_loop()
        loop.call_later(self._connection.timeouts.suspect_seconds, self._post, BrokerBack())
        return True

    def arrived(self) -> None:
        """The broker has said where the job stands."""
        self.is_repeating = False

    def progressed(self) -> None:
        """A unit was decided."""
        self._in_vain = 0

    def begun(self) -> None:
        """An attempt begins, with links of its own."""
        self._links_lost = ""
        self.stop_waiting()

    @property
    def has_links(self) -> bool:
        """Whether no link of the current attempt is lost for good."""
        return not self._links_lost

    def links_lost(self, lost: AttemptLost) -> None:
        """A link of the attempt is lost. `LinksOverdue` follows unless the broker ends the attempt soon.

        The broker knows more: it may have lost the worker, too. While it waits for that one, so does the run.
        """
        if self._links_lost:
            return
        self._links_lost = lost.reason
        if self._connection.is_open:
            self._overdue_later(lost)

    def _overdue_later(self, lost: AttemptLost) -> None:
        loop, lease = asyncio.get_running_loop(), self._connection.timeouts.lease_seconds

        def overdue() -> None:
            if lost.worker in self.away:
                self._overdue_later(lost)
            else:
                self._post(LinksOverdue(lost.attempt, lost.reason))

        self._overdue = loop.call_later(lease, overdue)

    def is_in_vain(self) -> bool:
        """Count a return without links; whether there were too many in a row that changed nothing."""
        self._in_vain += 1
        return self._in_vain > MOST_IN_VAIN

    def stop_waiting(self) -> None:
        """The attempt is over, or its end is not in question any more."""
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    async def _redial(self) -> None:
        try:
            await self._connection.reopen(self.patience_seconds)
        except (ConnectionFailed, IdentityError) as error:
            self._post(BrokerGivenUp(str(error)))
        else:
            self._post(BrokerBack())

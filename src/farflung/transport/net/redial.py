"""Restore a lost link: attempts follow one another, each with a time limit, within a limit for all.

`Pauses` says how far apart the attempts to reach a lost broker are, for which there is no such limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from farflung.errors import FarflungError
from farflung.transport.timeouts import Timeouts


async def redial(
    attempt: Callable[[], Awaitable[object]],
    is_settled: Callable[[], bool],
    timeouts: Timeouts,
    seconds: float,
) -> str:
    """Repeat `attempt` for at most `seconds`, until `is_settled`: the link is restored, or no longer needed.

    An attempt dials, claims the session and returns when the link is welcomed or over; it raises a
    `FarflungError` with the reason if it fails. After an attempt that reaches its limit, the next starts at
    once with twice the time, because the new path may be longer than the lost one. Other attempts are a
    heartbeat apart.

    Returns
    -------
    An empty string if it is settled, otherwise why the last attempt with its full time failed.
    """
    clock = asyncio.get_running_loop().time
    deadline, patience = clock() + seconds, timeouts.redial_seconds
    failure = ""
    while not is_settled():
        if (left := deadline - clock()) <= 0:
            return failure or "there was no time left"
        pause = timeouts.heartbeat_seconds
        try:
            async with asyncio.timeout(min(patience, left)):
                await attempt()
            failure = "it closed the link"
        except TimeoutError:
            if left >= patience or not failure:  # an attempt that the deadline cut short shows nothing new
                failure = "it did not answer in time"
            pause, patience = 0.0, 2 * patience
        except FarflungError as error:
            failure = str(error)
        if not is_settled():
            await asyncio.sleep(pause)
    return ""


class Pauses:
    """Pauses before the attempts to open another session with a lost broker. Pure.

    While a job waits, an attempt follows each quarter of a heartbeat for one lease, so that a broker that was
    only started again is found at once; then each heartbeat, for as long as workers keep their part.
    Otherwise pauses double from a heartbeat to a lease. A broker that ends session after session at once is
    not flooded: the first pause doubles with each session that ended so soon.
    """

    QUICK = 4

    def __init__(self) -> None:
        self.short = 0
        self._waited = 0.0
        self._last = 0.0

    def session_over(self, lived_seconds: float, timeouts: Timeouts) -> None:
        """A session has ended after so many seconds. `short` is how many in a row were too short to count."""
        self.short = self.short + 1 if lived_seconds < timeouts.suspect_seconds else 0
        self._waited = self._last = 0.0

    def next(self, timeouts: Timeouts, job_waits: bool) -> float:
        """Seconds until the next attempt."""
        pause = self._next(timeouts, job_waits)
        self._waited, self._last = self._waited + pause, pause
        return pause

    def _next(self, timeouts: Timeouts, job_waits: bool) -> float:
        heartbeat, longest = timeouts.heartbeat_seconds, timeouts.reconnect_seconds
        if self.short and not self._waited:
            return min(heartbeat * 2 ** min(self.short, 16), longest)
        if job_waits and self._waited < timeouts.lease_seconds:
            return heartbeat / self.QUICK
        if job_waits and self._waited < timeouts.orphan_seconds:
            return heartbeat
        return max(heartbeat, min(2 * self._last, longest))

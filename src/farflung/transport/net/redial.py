"""Restore a lost link: attempts follow one another, each with a time limit, within a limit for all."""

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

"""Making a lost link again: one attempt after the other, each with a limit, until one for all is over."""

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
    """Repeat `attempt` for at most `seconds`, until `is_settled`: the link stands, or nobody wants it.

    An attempt dials, claims the session and returns when the link is welcomed or over; a `FarflungError`
    tells why it came to nothing. One that reaches its limit is followed at once by one with twice the time,
    as the new path may be longer than the lost one; others are a heartbeat apart.

    Returns
    -------
    Nothing if it is settled, otherwise why the last attempt failed that had its time.
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
            if left >= patience or not failure:  # what the end cut short tells nothing new
                failure = "it did not answer in time"
            pause, patience = 0.0, 2 * patience
        except FarflungError as error:
            failure = str(error)
        if not is_settled():
            await asyncio.sleep(pause)
    return ""

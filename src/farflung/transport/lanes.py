"""A link's connections: the primary one, and as many more as either side wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from farflung.errors import ConnectionFailed
from farflung.transport.connection import Connection
from farflung.transport.frames import Stripe
from farflung.transport.lane import Lane, Owner
from farflung.transport.timeouts import Timeouts
from farflung.transport.width import MAXIMUM_CONNECTIONS

_log = logging.getLogger("farflung.transport")

More = Callable[[], Awaitable[Connection]]
"""Makes one connection more to the same peer."""


class Lanes:
    """Opens connections where its side dialled, takes those that the other side opened where not.

    Parameters
    ----------
    primary
        The connection that made the link.
    owner
        The link.
    more
        How this side opens another; None where it cannot.

    Attributes
    ----------
    token : Belongs to the link, and proves that a connection does; None until it is known.
    """

    def __init__(self, primary: Lane, owner: Owner, more: More | None) -> None:
        self.primary = primary
        self.token: bytes | None = None
        self._owner = owner
        self._more = more
        self._further: list[Lane] = []
        self._greeting: dict[Lane, asyncio.TimerHandle] = {}
        self._dialling: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many can be used."""
        return 1 + len(self._further)

    def __contains__(self, lane: Lane) -> bool:
        """Whether it can be used."""
        return lane is self.primary or lane in self._further

    def want(self, count: int, timeouts: Timeouts) -> bool:
        """Have `count` connections in all before long; False if no more are needed or can be had."""
        missing = min(count, MAXIMUM_CONNECTIONS) - len(self) - len(self._greeting) - len(self._dialling)
        if self._more is None or self.token is None or missing <= 0:
            return False
        for _ in range(missing):
            task = asyncio.get_running_loop().create_task(self._dial(self._more, self.token, timeouts))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)
        return True

    def greeted(self, lane: Lane, token: bytes) -> bool:
        """The other side answered on a connection opened here; False if it had nothing to answer."""
        deadline = self._greeting.pop(lane, None)
        if deadline is None or token != self.token:
            return False
        deadline.cancel()
        self._further.append(lane)
        return True

    def take(self, lane: Lane) -> bool:
        """Take a connection that showed the token; False if there are enough."""
        if len(self) >= MAXIMUM_CONNECTIONS:
            return False
        lane.adopt(self._owner)
        self._further.append(lane)
        return True

    def release(self) -> None:
        """Let those go on that are held."""
        for lane in (self.primary, *self._further):
            if lane.is_held:
                lane.go_on()

    def may_hold(self, lane: Lane) -> bool:
        """Whether another one may bring what this one waits for."""
        others = [other for other in (self.primary, *self._further) if other is not lane]
        return bool(self._greeting or self._dialling) or not all(other.is_held for other in others)

    def ignore(self) -> None:
        """Write to no memory that the link's handler gave, and notice when the other side hangs up."""
        for lane in (self.primary, *self._further):
            lane.ignore()

    def let_go(self) -> None:
        """What was on its way has left, or never will."""
        for lane in (self.primary, *self._further):
            lane.let_go()

    def abort(self) -> None:
        """Hang up on all of them."""
        self.primary.connection.abort()
        self.abort_further()

    def abort_further(self) -> None:
        """Hang up on all but the primary one."""
        for task in self._dialling:
            task.cancel()
        for lane in (*self._further, *self._greeting):
            lane.connection.abort()

    def forget(self, lane: Lane) -> bool:
        """A connection is gone; whether it was in use."""
        if deadline := self._greeting.pop(lane, None):
            deadline.cancel()
        return lane in self

    async def closed(self) -> None:
        """Return when none is being opened any more."""
        await asyncio.gather(*self._dialling, return_exceptions=True)

    async def _dial(self, more: More, token: bytes, timeouts: Timeouts) -> None:
        try:
            async with asyncio.timeout(timeouts.dial_seconds):
                connection = await more()
        except (OSError, ConnectionFailed) as error:
            _log.info("no further connection to %s: %s", self.primary.connection.remote, error)
            return
        lane = Lane(connection, self._owner)
        loop = asyncio.get_running_loop()
        self._greeting[lane] = loop.call_later(timeouts.dial_seconds, connection.abort)
        lane.start()
        lane.write_now(Stripe(token))

"""One picture of the fleet a second, encoded once for all viewers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from farflung.pages.live.curves import Curves
from farflung.protocol.messages import Status

_log = logging.getLogger("farflung.pages")

SECONDS = 1.0
"""Time between two pictures. Each costs the broker a look at all workers and jobs."""
SILENCE_SECONDS = 10.0
"""After so long without a change viewers get a comment, by which both ends notice a dead connection."""


class Picture(msgspec.Struct, frozen=True):
    """What viewers see: when the broker was asked (Unix seconds), and its status then."""

    at: float
    status: Status


class Feed:
    """Asks for the status each second, and hands it to viewers if something has changed.

    A viewer that reads slowly gets the newest picture once it has read the one before: nothing waits for it.
    """

    def __init__(self, status: Callable[[], Status], clock: Callable[[], float] = time.time) -> None:
        self._status = status
        self._clock = clock
        self._curves = Curves()
        self.newest = Picture(clock(), status())
        self._event = b""
        self._number = int(clock() * 1000)  # so that numbers of an earlier process are lower
        self._seen = b""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Look each second until cancelled; a look that fails is logged, and the next one follows."""
        failure = ""
        while True:
            try:
                self.look()
                failure = ""
            except Exception as error:
                if repr(error) != failure:
                    _log.exception("the page cannot show the newest status")
                failure = repr(error)
            await asyncio.sleep(SECONDS)

    def look(self) -> None:
        """Ask for the status now."""
        self.newest = Picture(self._clock(), self._status())
        self._curves.add(self.newest.status.jobs, self.newest.at)
        lasting = msgspec.json.encode(_without_ages(self.newest.status))
        if lasting == self._seen:
            return
        self._seen = lasting
        self._number += 1
        self._event = b"id: %d\ndata: %b\n\n" % (self._number, self.status)
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def status(self) -> bytes:
        """The newest picture, in JSON; at most a second old."""
        return msgspec.json.encode(self.newest)

    @property
    def curves(self) -> bytes:
        """The curves of all jobs, in JSON."""
        return msgspec.json.encode(self._curves.of_jobs)

    async def events(self, seen: int = 0) -> AsyncIterator[bytes]:
        """Server-sent events: each new picture, and comments in times without any.

        `seen` is the number of the last picture that the viewer had.
        """
        while True:
            changed = self._changed
            if self._number != seen and self._event:
                seen = self._number
                yield self._event
                continue
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await changed.wait()
            except TimeoutError:
                yield b": nothing has changed\n\n"


def _without_ages(status: Status) -> Status:
    """The status without what changes by the mere passing of time."""
    workers = [
        msgspec.structs.replace(
            one, last_seen_seconds=0.0, gone_seconds=0.0, measured_seconds=0.0, there_seconds=0.0
        )
        for one in status.workers
    ]
    return msgspec.structs.replace(status, uptime_seconds=0.0, workers=workers)

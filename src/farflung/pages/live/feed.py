"""One picture of the fleet a second, encoded once for all viewers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from farflung.pages.live.curves import Curves
from farflung.protocol.messages import Status

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
        self._newest = b"{}"
        self._number = int(clock() * 1000)  # so that numbers of an earlier process are lower
        self._seen = b""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Look each second until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(SECONDS)

    def look(self) -> None:
        """Ask for the status now."""
        picture = Picture(self._clock(), self._status())
        self._curves.add(picture.status.jobs, picture.at)
        lasting = msgspec.json.encode(_without_ages(picture.status))
        if lasting == self._seen:
            return
        self._seen = lasting
        self._newest = msgspec.json.encode(picture)
        self._number += 1
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def current(self) -> Status:
        """The status now."""
        return self._status()

    @property
    def status(self) -> bytes:
        """The newest picture, in JSON."""
        return self._newest

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
            if self._number != seen:
                seen = self._number
                yield b"id: %d\ndata: %b\n\n" % (seen, self._newest)
                continue
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await changed.wait()
            except TimeoutError:
                yield b": nothing has changed\n\n"


def _without_ages(status: Status) -> Status:
    """The status without what changes by the mere passing of time."""
    workers = [
        msgspec.structs.replace(one, last_seen_seconds=0.0, gone_seconds=0.0, measured_seconds=0.0)
        for one in status.workers
    ]
    return msgspec.structs.replace(status, uptime_seconds=0.0, workers=workers)

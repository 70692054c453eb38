"""Measurements on disk, so that a broker that starts again need not have them taken again.

They are observations: what is lost with a broker's last second can be measured anew, so nobody waits for the
disk, and a full one is no reason to stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from farflung.broker.measurements import Measurement, read_row, row
from farflung.broker.store import Store
from farflung.errors import StoreError

_log = logging.getLogger("farflung.broker")

KEPT_SECONDS = 30 * 24 * 3600.0
"""Older ones are not believed after a restart."""


class Logbook:
    """Measurements in a store; `spawn` runs what writes them, in the background."""

    def __init__(self, store: Store, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._store = store
        self._spawn = spawn
        self._unwritten: dict[tuple[str, str], bytes] = {}
        self._forgotten: set[str] = set()
        self._is_writing = False

    def read(self) -> list[Measurement]:
        """What was kept; what another version has written is left out."""
        kept = [found for found in map(read_row, self._store.measurements()) if found is not None]
        return [found for found in kept if time.time() - found.at < KEPT_SECONDS]

    def note(self, found: Iterable[Measurement]) -> None:
        """Write these with the next ones."""
        for one in found:
            subject, thing, body = row(one)
            self._unwritten[subject, thing] = body

    def forget(self, worker: str) -> None:
        """Drop all that concerns a worker."""
        self._unwritten = {key: body for key, body in self._unwritten.items() if worker not in key}
        self._forgotten.add(worker)

    def write(self) -> None:
        """Begin to write what was noted, unless that is under way."""
        if not self._is_writing and (self._unwritten or self._forgotten):
            self._is_writing = True
            self._spawn(self._write())

    async def _write(self) -> None:
        forgotten, self._forgotten = self._forgotten, set()
        unwritten, self._unwritten = self._unwritten, {}
        rows = [(subject, thing, body) for (subject, thing), body in unwritten.items()]
        try:
            for worker in forgotten:
                await asyncio.to_thread(self._store.forget_measurements, worker)
            if rows:
                await asyncio.to_thread(self._store.write_measurements, rows)
        except StoreError as error:
            _log.warning("measurements could not be kept: %s", error)
        finally:
            self._is_writing = False

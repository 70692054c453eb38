"""The one thread on which copies are read, written and hashed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from farflung.errors import CopyError
from farflung.worker.storing.copy_store import CopyStore

_Result = TypeVar("_Result")

NO_DISK = "it holds no copies (`farflung join --disk`)"


class FileThread:
    """Runs calls one after another. `store` is None if the owner of this machine lets copies take no disk."""

    def __init__(self, store: CopyStore | None) -> None:
        self.store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="farflung-copies")

    def disk(self) -> CopyStore:
        """The store; CopyError if there is none."""
        if self.store is None:
            raise CopyError(NO_DISK)
        return self.store

    def submit(self, call: Callable[..., object], *arguments: object) -> None:
        """Run a call that never raises, and do not wait for it."""
        self._thread.submit(call, *arguments)

    async def run(self, call: Callable[[], _Result]) -> _Result:
        """Run a call, and wait for its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close(self) -> None:
        """Wait until all calls are done."""
        await asyncio.to_thread(self._thread.shutdown)

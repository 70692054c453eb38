"""Take base weights of a job from this worker's disk, and ask the submitter for what is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from farflung.errors import ProtocolError
from farflung.protocol.messages import Load, Message
from farflung.protocol.sessions import BaseLacking, BaseList, BasePiece
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.weights.cache import WeightCache


@dataclass(frozen=True)
class _Reserved:
    """A piece of the base with the memory that it goes to."""

    piece: BasePiece
    memory: memoryview


class BaseFilling:
    """Fills a `StateReceiver` with what the submitter's `BaseList` names.

    `tell` sends a message to the submitter; `filled` is called each time that pieces were filled. Without a
    `cache` this worker asks for everything.
    """

    def __init__(
        self, cache: WeightCache | None, tell: Callable[[Message], None], filled: Callable[[], None]
    ) -> None:
        self._cache, self._tell, self._filled = cache, tell, filled
        self._files = ThreadPoolExecutor(1, thread_name_prefix="farflung-weights")
        self._came: list[_Reserved] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self, peer: str, load: Load, receiver: StateReceiver, base: BaseList) -> None:
        """Fill `receiver` with the pieces of the base that are here.

        Raises
        ------
        ProtocolError
            The peer is not to list these, or has sent a list before.
        """
        if self._task is not None:
            raise ProtocolError(f"{peer} listed base weights twice")
        reserved = [
            _Reserved(piece, receiver.reserve(peer, piece.segment, piece.name, piece.sha256))
            for piece in base.pieces
        ]
        self._task = asyncio.create_task(self._fill(load, receiver, reserved))

    def keep(self) -> None:
        """Keep on disk what the submitter sent of the base: the whole state has come, and was verified."""
        if self._cache is not None:
            for came in self._came:
                self._files.submit(self._cache.keep, came.piece.sha256, came.memory)
        self._came = []

    def copied(self) -> None:
        """A copy of some state has taken room on the disk, which the base weights have to leave to it."""
        if self._cache is not None:
            self._files.submit(self._cache.shrink)

    def end(self) -> None:
        """The attempt is over."""
        if self._task is not None:
            self._task.cancel()
        self._task, self._came = None, []

    async def close(self) -> None:
        """End everything, and wait for the files."""
        task = self._task
        self.end()
        await asyncio.gather(*([task] if task else []), return_exceptions=True)
        await asyncio.to_thread(self._files.shutdown)

    async def _fill(self, load: Load, receiver: StateReceiver, reserved: Sequence[_Reserved]) -> None:
        for one in reserved:
            if await self._is_cached(one):
                receiver.fill(one.piece.segment, one.piece.name)
            else:
                receiver.ask(one.piece.segment, one.piece.name)
                self._came.append(one)
        lacking = [(one.piece.segment, one.piece.name) for one in self._came]
        self._tell(BaseLacking(load.job, load.attempt, lacking))
        if len(lacking) < len(reserved):
            self._filled()

    async def _is_cached(self, one: _Reserved) -> bool:
        if self._cache is None:
            return False
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._files, self._cache.read, one.piece.sha256, one.memory)

"""Take base weights of a job from this worker's disk or from where they lie, and ask for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from farflung.errors import ProtocolError
from farflung.protocol.fields import one_line
from farflung.protocol.messages import Load, Message
from farflung.protocol.sessions import BaseLacking, BaseList, BasePiece
from farflung.text import format_bytes
from farflung.weights.allowed import Allowed
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.weights.cache import WeightCache, log
from farflung.worker.weights.fetching import Fetching, Wanted


class _Reserved(NamedTuple):
    """A piece of the base with the memory that it goes to."""

    piece: BasePiece
    memory: memoryview


class BaseFilling:
    """Fills a `StateReceiver` with what the submitter's `BaseList` names.

    `tell` sends a message to the submitter; `filled` is called each time that pieces were filled. Without a
    `cache` nothing is kept. What is in neither is fetched from the list's files, as far as that is `allowed`.
    """

    def __init__(
        self,
        cache: WeightCache | None,
        allowed: Allowed,
        tell: Callable[[Message], None],
        filled: Callable[[], None],
    ) -> None:
        self._cache, self._allowed, self._tell, self._filled = cache, allowed, tell, filled
        self._files = ThreadPoolExecutor(1, thread_name_prefix="farflung-weights")
        self._uncached: list[_Reserved] = []
        self._fetching: Fetching | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, peer: str, load: Load, receiver: StateReceiver, base: BaseList) -> None:
        """Fill `receiver` with the pieces of the base that are here or can be fetched.

        Raises
        ------
        ProtocolError
            The peer is not to list these, or has sent a list before.
        """
        if self._task is not None:
            raise ProtocolError(f"{peer} listed base weights twice")
        if any(piece.at is not None and piece.at.file >= len(base.files) for piece in base.pieces):
            raise ProtocolError(f"{peer} listed base weights in a file that it did not list")
        reserved = [
            _Reserved(piece, receiver.reserve(peer, piece.segment, piece.name, piece.sha256))
            for piece in base.pieces
        ]
        self._task = asyncio.create_task(self._fill(load, receiver, base, reserved))

    def keep(self) -> None:
        """Keep on disk what came of the base: the whole state is here, and was verified."""
        if self._cache is not None:
            self.copied()  # the room for all of them is measured once
            for one in self._uncached:
                self._files.submit(self._cache.keep, one.piece.sha256, one.memory)
        self._uncached = []

    def copied(self) -> None:
        """A copy of some state has taken room on the disk, which the base weights have to leave to it."""
        if self._cache is not None:
            self._files.submit(self._cache.shrink)

    def end(self) -> None:
        """The attempt is over."""
        if self._task is not None:
            self._task.cancel()
        if self._fetching is not None:
            self._fetching.stop()
        self._task, self._fetching, self._uncached = None, None, []

    async def close(self) -> None:
        """End everything, and wait for the files; a thread that fetches ends by itself, soon."""
        task = self._task
        self.end()
        await asyncio.gather(*([task] if task else []), return_exceptions=True)
        await asyncio.to_thread(self._files.shutdown)

    async def _fill(
        self, load: Load, receiver: StateReceiver, base: BaseList, reserved: Sequence[_Reserved]
    ) -> None:
        lacking: list[_Reserved] = []
        wanted: list[Wanted] = []
        for one in reserved:
            if await self._is_cached(one):
                receiver.fill(one.piece.segment, one.piece.name)
                continue
            self._uncached.append(one)
            if one.piece.at is not None:
                wanted.append(Wanted(one.piece, one.piece.at, one.memory))
            else:
                lacking.append(one)
        self._ask(load, receiver, [one.piece for one in lacking], last=not wanted)
        if len(self._uncached) < len(reserved):
            self._filled()
        if wanted:
            await self._fetch(load, receiver, base, wanted)

    async def _fetch(
        self, load: Load, receiver: StateReceiver, base: BaseList, wanted: Sequence[Wanted]
    ) -> None:
        loop = asyncio.get_running_loop()

        def on_fetched(one: Wanted) -> None:
            with suppress(RuntimeError):  # the loop is closed: the worker is shutting down
                loop.call_soon_threadsafe(receiver.fill, one.piece.segment, one.piece.name)

        fetching = self._fetching = Fetching(self._allowed, base.files, on_fetched)
        # A thread of its own: a server that holds one up holds up no later job.
        network = ThreadPoolExecutor(1, thread_name_prefix="farflung-fetching")
        try:
            left = await loop.run_in_executor(network, partial(fetching.fetch, wanted))
        finally:
            network.shutdown(wait=False)
        if fetched := fetching.fetched_bytes:
            log.info("job %s: fetched %s of base weights", load.job, format_bytes(fetched))
        for trouble in fetching.troubles:
            log.warning("job %s: base weights are not fetched: %s", load.job, trouble)
        self._ask(load, receiver, [one.piece for one in left], True, fetching)
        if len(left) < len(wanted):
            self._filled()

    def _ask(
        self,
        load: Load,
        receiver: StateReceiver,
        pieces: Sequence[BasePiece],
        last: bool,
        fetching: Fetching | None = None,
    ) -> None:
        """Ask the submitter for pieces, and say whether that was all."""
        for piece in pieces:
            receiver.ask(piece.segment, piece.name)
        troubles = [] if fetching is None else [one_line(trouble) for trouble in fetching.troubles]
        fetched = 0 if fetching is None else fetching.fetched_bytes
        asked = [(piece.segment, piece.name) for piece in pieces]
        self._tell(BaseLacking(load.job, load.attempt, asked, last, fetched, troubles))

    async def _is_cached(self, one: _Reserved) -> bool:
        if self._cache is None:
            return False
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._files, self._cache.read, one.piece.sha256, one.memory)

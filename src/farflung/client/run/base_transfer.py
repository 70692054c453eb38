"""How base weights are listed to the workers of an attempt, and what these ask for.

Base weights are the parameters and buffers that no step changes. Workers may have them from an earlier job or
attempt: each is named by the SHA-256 of its bytes, and only what a worker lacks is sent to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from farflung.client.output.records import BaseBytes
from farflung.errors import ConnectionFailed, ProtocolError
from farflung.protocol.sessions import BaseLacking, BaseList, BasePiece, StoredAt

LEAST_BYTES = 1024
"""Smaller tensors are sent: that takes no longer than to name them."""


class BaseRequests:
    """What one worker asks for of the pieces that were listed to it; `sizes` are theirs in bytes."""

    def __init__(self, worker: str, listed: BaseList, sizes: Mapping[str, int]) -> None:
        self._worker, self._listed = worker, listed
        self._left = {(piece.segment, piece.name): sizes[piece.name] for piece in listed.pieces}
        self._asked: asyncio.Queue[BaseLacking | None] = asyncio.Queue()
        self._total = sum(self._left.values())
        self._fetched = 0
        self._is_answered = False

    def answered(self, lacking: BaseLacking) -> None:
        """Take an answer of the worker.

        Raises
        ------
        ProtocolError
            It asks for what was not listed or for a piece twice, or it has given its last answer.
        """
        if (lacking.job, lacking.attempt) != (self._listed.job, self._listed.attempt):
            return
        if self._is_answered or not set(lacking.pieces) <= self._left.keys():
            raise ProtocolError(f"worker {self._worker} asks for base weights that were not listed to it")
        if len(set(lacking.pieces)) < len(lacking.pieces):
            raise ProtocolError(f"worker {self._worker} asks for base weights twice")
        for piece in lacking.pieces:
            del self._left[piece]
        self._is_answered = lacking.last
        self._fetched = lacking.fetched_bytes
        self._asked.put_nowait(lacking)

    def lost(self) -> None:
        """The worker is lost: it answers no more."""
        self._asked.put_nowait(None)

    async def next(self) -> BaseLacking:
        """The worker's next answer; ConnectionFailed if it is lost before."""
        lacking = await self._asked.get()
        if lacking is None:
            raise ConnectionFailed(f"worker {self._worker} was lost before it had its base weights")
        return lacking

    @property
    def bytes(self) -> BaseBytes:
        """Where the worker's base weights came from, after its last answer."""
        here = sum(self._left.values())
        fetched = min(here, self._fetched)
        return BaseBytes(here - fetched, self._total - here, fetched)


def base_list(
    job: str,
    attempt: int,
    names: Mapping[int, Sequence[str]],
    digests: Mapping[str, bytes],
    places: Mapping[str, StoredAt],
    files: Sequence[str],
) -> BaseList:
    """The list for a worker whose segments own `names` of the base; some are also at `places` in `files`."""
    used = sorted({places[name].file for of_one in names.values() for name in of_one if name in places})
    renumbered = {
        name: msgspec.structs.replace(at, file=used.index(at.file))
        for name, at in places.items()
        if at.file in used
    }
    pieces = [
        BasePiece(segment, name, digests[name], renumbered.get(name))
        for segment in sorted(names)
        for name in names[segment]
    ]
    return BaseList(job, attempt, pieces, [files[number] for number in used])

"""Copies that other workers send to this one, and the bases that they name, in slices.

All methods belong to the event loop; what is written and verified, is on the thread for files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from farflung.errors import CopyError, ProtocolError
from farflung.protocol.copies import AskBase, HeldCopy, Retain, StateVersion
from farflung.protocol.messages import Load
from farflung.runtime.state import StateKey
from farflung.transport.wire.headers import SLICE_BYTES, SliceHeader
from farflung.worker.storing.copy_format import Base
from farflung.worker.storing.copy_store import CopyStore, IncomingFile
from farflung.worker.storing.file_thread import FileThread

COPY = StateKey("", "copy")
"""The key of the slices of a copy's file."""

BASE = StateKey("", "base")
"""The key of the slices of a base."""

MOST_UNWRITTEN_BYTES = 16 * SLICE_BYTES
"""A copy that comes faster than the disk takes it is given up, before it fills the memory."""

TOO_SLOW = "the disk here is slower than the line (`farflung join --standby-mbps` at the sender)"


class CopyKey(NamedTuple):
    """A copy that another worker sends."""

    version: StateVersion
    share: int


class BaseKey(NamedTuple):
    """A base that another worker sends; copies of several versions may wait for it."""

    share: int
    sha256: bytes


@dataclass
class Arriving:
    """A file of `total` bytes that another worker sends; `failure` says why its slices are dropped.

    Of the bytes that were `taken` so many are `written`: on disk, or dropped. `is_reported`: the broker has
    heard of the failure. A copy that is whole `lacks` the base that it names until that has come, too.
    """

    sha256: bytes
    total: int
    sender: str
    left: int
    opened: set[int] = field(default_factory=set)
    taken: int = 0  # counted by the event loop
    written: int = 0  # counted by the thread for files
    is_reported: bool = False
    file: IncomingFile | None = None
    failure: str = ""
    lacks: Base | None = None


class Arrivals:
    """What is on its way to this worker.

    `ask` asks a sender for the base of a copy, `kept` is called with each copy that is on disk and verified,
    `failed` once with one that does not get here. A copy that was given to take part in an attempt is
    neither: see `given`. `spawn` starts work that ends with the attempt.
    """

    def __init__(
        self,
        worker: str,
        files: FileThread,
        ask: Callable[[str, AskBase], None],
        kept: Callable[[Load, HeldCopy], None],
        failed: Callable[[Load, StateVersion, int, str], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._worker, self._files = worker, files
        self._ask, self._kept, self._failed, self._spawn = ask, kept, failed, spawn
        self._load: Load | None = None
        self._owners: set[str] = set()
        self._arriving: dict[CopyKey, Arriving] = {}
        self._bases: dict[BaseKey, Arriving] = {}
        self._given: dict[int, asyncio.Future[None]] = {}

    def begin(self, load: Load) -> None:
        """An attempt begins: copies of those for whom this worker is the holder, and gifts, may come."""
        self._load = load
        self._owners = {owner for owner, holder in load.holders.items() if holder == self._worker}
        shares = [share for _, taker, share in load.gifts if taker == self._worker]
        self._given = {share: asyncio.get_running_loop().create_future() for share in shares}

    def take_from(self, owners: Iterable[str]) -> None:
        """Copies of these workers may come, too."""
        self._owners |= {*owners}

    def end(self) -> None:
        """The attempt is over: what is on its way is dropped."""
        for arriving in (*self._arriving.values(), *self._bases.values()):
            self._files.submit(_close, arriving)
        self._load, self._owners, self._given, self._arriving, self._bases = None, set(), {}, {}, {}

    def lost(self, peer: str) -> None:
        """The link to `peer` is lost for good."""
        for key in [key for key, arriving in self._arriving.items() if arriving.sender == peer]:
            self._drop(key, "the link was lost")
        for base in [base for base, arriving in self._bases.items() if arriving.sender == peer]:
            self._drop_base(base, "the link was lost")

    async def given(self, share: int) -> None:
        """Wait for the copy of a share that another worker gives, if one does; CopyError if it is lost."""
        if (given := self._given.get(share)) is not None:
            await given

    def shares(self, load: Load) -> set[int]:
        """The shares of this worker and of those whose copies may come."""
        owners = {self._worker, *self._owners} & {*load.plan.workers()}
        return {share_of(load, owner) for owner in owners}

    def give_up(self, message: Retain) -> None:
        """Take no more of the versions that are deleted; a base goes on, for versions to come."""
        for key, arriving in self._arriving.items():
            if is_deleted(key.version, message) and not arriving.is_reported:
                arriving.is_reported, arriving.failure = True, "it is needed no more"
                self._files.submit(_close, arriving)

    def opening(self, peer: str, header: SliceHeader) -> memoryview | None:
        """The memory for a slice of a copy; None if it belongs to another attempt or cannot be kept.

        Raises
        ------
        ProtocolError
            The peer is not to send this worker that copy, or the slice does not fit it.
        """
        load = self._load
        if load is None or header.job != load.job or header.attempt < load.attempt:
            return None
        key = self._expected(load, peer, header)
        arriving = self._file_of(header, key)
        if arriving is None:
            if header.slot == BASE.slot:
                return None  # it was not asked for, or is given up
            arriving = self._arriving[key] = Arriving(header.sha256, header.total, peer, header.total)
            self._files.submit(self._open, load.job, key, arriving)
        is_same = (arriving.sha256, arriving.total, arriving.sender) == (header.sha256, header.total, peer)
        is_new = header.bytes and header.offset not in arriving.opened
        if not is_same or not is_new or header.offset + header.bytes > header.total:
            raise ProtocolError(f"{peer} sent a slice that does not fit its copy")
        if arriving.taken - arriving.written + header.bytes > MOST_UNWRITTEN_BYTES:
            arriving.failure = arriving.failure or TOO_SLOW
        if arriving.failure:
            if header.slot == BASE.slot:
                self._drop_base(BaseKey(key.share, header.sha256), arriving.failure)
            else:
                self._tell_failure(key, arriving, arriving.failure)
            return None
        arriving.taken += header.bytes
        arriving.opened.add(header.offset)
        return memoryview(bytearray(header.bytes))

    def _file_of(self, header: SliceHeader, key: CopyKey) -> Arriving | None:
        """The file that a slice is part of, if it has begun to arrive."""
        if header.slot == BASE.slot:
            return self._bases.get(BaseKey(key.share, header.sha256))
        return self._arriving.get(key)

    def retract(self, peer: str, header: SliceHeader) -> None:
        """Undo `opening` for a slice that was cut off by a lost link: it will be sent again."""
        load = self._load
        if load is None or header.attempt != load.attempt:
            return
        if arriving := self._file_of(header, self._expected(load, peer, header)):
            arriving.opened.discard(header.offset)
            arriving.taken -= header.bytes

    def complete(self, peer: str, header: SliceHeader, buffer: memoryview) -> None:
        """Keep a slice that was received completely; the last one completes the copy, or its base."""
        load = self._load
        if load is None or header.attempt != load.attempt:
            return
        key = self._expected(load, peer, header)
        arriving = self._file_of(header, key)
        if arriving is None:
            return
        self._files.submit(_write, arriving, header.offset, buffer)
        arriving.left -= header.bytes
        if arriving.left:
            return
        if header.slot == BASE.slot:
            self._spawn(self._finish_base(load, BaseKey(key.share, header.sha256), arriving))
        else:
            self._spawn(self._finish(load, key, arriving))

    async def _finish(self, load: Load, key: CopyKey, copy: Arriving) -> None:
        """A copy is whole: put it on disk. If the base that it names is not there, ask for that first."""
        if copy.failure:
            return
        try:
            base, copy.lacks = await self._files.run(partial(_put, self._files.disk(), load.job, key, copy))
        except CopyError as error:
            self._drop(key, str(error))
            return
        if copy.lacks is not None:
            self._ask_base(load, key, copy.sender, copy.lacks)
            return
        self._arriving.pop(key, None)
        if key.version == load.version and key.share in self._given:
            if not self._given[key.share].done():
                self._given[key.share].set_result(None)
        else:
            self._kept(load, _held(load.job, key, copy, base))

    def _ask_base(self, load: Load, key: CopyKey, sender: str, base: Base) -> None:
        """Ask for a base, unless it comes already for the copy of an earlier version."""
        of = BaseKey(key.share, base.sha256)
        if of not in self._bases:
            arriving = self._bases[of] = Arriving(base.sha256, base.bytes, sender, base.bytes)
            self._files.submit(self._open_base, load.job, of, arriving)
            self._ask(sender, AskBase(load.job, load.attempt, key.version, key.share))

    async def _finish_base(self, load: Load, of: BaseKey, arriving: Arriving) -> None:
        """A base is whole: put it on disk, and then the copies that wait for it."""
        try:
            await self._files.run(partial(_put_base, arriving))
        except CopyError as error:
            self._drop_base(of, str(error))
            return
        self._bases.pop(of, None)
        for key, copy in self._waiting_for(of):
            await self._finish(load, key, copy)

    def _waiting_for(self, of: BaseKey) -> list[tuple[CopyKey, Arriving]]:
        return [
            (key, copy)
            for key, copy in self._arriving.items()
            if key.share == of.share and copy.lacks is not None and copy.lacks.sha256 == of.sha256
        ]

    def _drop(self, key: CopyKey, reason: str) -> None:
        """Give up a copy that was on its way here, and say so."""
        if (copy := self._arriving.pop(key, None)) is not None:
            self._files.submit(_close, copy)
            self._tell_failure(key, copy, reason)

    def _drop_base(self, of: BaseKey, reason: str) -> None:
        """Give up a base that was on its way here, and the copies that wait for it."""
        if (arriving := self._bases.pop(of, None)) is not None:
            self._files.submit(_close, arriving)
        for key, _ in self._waiting_for(of):
            self._drop(key, reason)

    def _tell_failure(self, key: CopyKey, copy: Arriving, reason: str) -> None:
        """Say once that a copy does not get here; what still comes of it is dropped."""
        load = self._load
        if load is None or copy.is_reported:
            return
        copy.is_reported, copy.failure = True, copy.failure or reason
        if key.version != load.version:
            self._failed(load, key.version, key.share, reason)
        elif (given := self._given.get(key.share)) is not None and not given.done():
            given.set_exception(CopyError(reason))

    def _expected(self, load: Load, peer: str, header: SliceHeader) -> CopyKey:
        """The copy that a slice is part of, if this worker holds it for `peer` or gets it from there."""
        assert header.unit is not None
        key = StateKey(header.name, header.slot)
        version = load.version
        is_given = (peer, self._worker, header.segment) in load.gifts
        if is_given and version is not None and version.unit == header.unit:
            known = version
        elif peer in self._owners and header.segment == share_of(load, peer):
            known = StateVersion(load.attempt, header.unit)
        else:
            raise ProtocolError(f"{peer} sent a copy of its state, which the plan does not expect")
        if key not in (COPY, BASE):
            raise ProtocolError(f"{peer} sent {key} with a unit, which only copies have")
        return CopyKey(known, header.segment)

    def _open(self, job: str, key: CopyKey, arriving: Arriving) -> None:
        try:
            arriving.file = self._files.disk().receive(_held(job, key, arriving))
        except CopyError as error:
            arriving.failure = str(error)

    def _open_base(self, job: str, of: BaseKey, arriving: Arriving) -> None:
        try:
            base = Base(of.sha256, arriving.total)
            arriving.file = self._files.disk().receive_base(job, of.share, base)
        except CopyError as error:
            arriving.failure = str(error)


def share_of(load: Load, worker: str) -> int:
    """The share of a member: the first of its segments."""
    return min(load.plan.segments_of(worker))


def is_deleted(version: StateVersion, message: Retain) -> bool:
    """Whether copies of this version are to be deleted."""
    return version <= message.up_to and version not in message.versions


def _held(job: str, key: CopyKey, arriving: Arriving, base: Base | None = None) -> HeldCopy:
    return HeldCopy(job, key.version, key.share, arriving.sha256, arriving.total, *(base or ()))


# On the thread for files


def _write(arriving: Arriving, offset: int, data: memoryview) -> None:
    if arriving.file is None or arriving.failure:
        arriving.written += len(data)
        return
    try:
        arriving.file.write(offset, data)
    except CopyError as error:
        arriving.failure = str(error)
    arriving.written += len(data)


def _put(disk: CopyStore, job: str, key: CopyKey, copy: Arriving) -> tuple[Base | None, Base | None]:
    """Put a copy that is whole on disk; returns the base that it names.

    If that is lacking here, it is returned twice, and the copy has to wait for it.
    """
    file = _whole(copy)
    base = file.verify() if copy.lacks is None else copy.lacks
    if base is None or disk.has_base(job, key.share, base):
        file.finish()
        return base, None
    if copy.lacks is not None:
        raise CopyError("what training does not change of the share did not stay on the disk")
    return base, base


def _put_base(arriving: Arriving) -> None:
    file = _whole(arriving)
    file.verify()
    file.finish()


def _whole(arriving: Arriving) -> IncomingFile:
    if arriving.file is None or arriving.failure:
        raise CopyError(arriving.failure)
    return arriving.file


def _close(arriving: Arriving) -> None:
    if arriving.file is not None:
        arriving.file.close()

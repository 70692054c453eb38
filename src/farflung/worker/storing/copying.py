"""The copies of an attempt: this worker's own, those that it holds for others, and those that it gives.

A copy travels as the file that it is on disk, in slices, and is verified by the digest of the whole. All
methods belong to the event loop; files are read, written and hashed on one thread. A copy that fails never
ends the attempt: it only leaves the job less protected, and the broker hears why.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from farflung.errors import ConnectionFailed, CopyError, FarflungError, ProtocolError
from farflung.protocol.copies import Copied, CopyLost, HeldCopy, Retain, StateVersion
from farflung.protocol.fields import one_line
from farflung.protocol.messages import Load, Message
from farflung.runtime.state import StateKey
from farflung.transport.link.governor import ANY_PACE, Pace
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import SLICE_BYTES, SliceHeader, slices
from farflung.worker.computing.outcomes import StateCopied
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.storing.copy_store import CopyStore, IncomingCopy

log = logging.getLogger("farflung.worker")

_Result = TypeVar("_Result")

COPY = StateKey("", "copy")
"""The key of the slices of a copy's file."""

MOST_UNWRITTEN_BYTES = 16 * SLICE_BYTES
"""A copy that comes faster than the disk takes it is given up, before it fills the memory."""

TOO_SLOW = "the disk here is slower than the line (`farflung join --standby-mbps` at the sender)"

NO_DISK = "it holds no copies (`farflung join --disk`)"


class Sending(Protocol):
    """The part of the data links that copies use."""

    async def send_slice(self, peer: str, header: SliceHeader, buffer: memoryview) -> None:
        """Send a slice to a peer, and wait until it has left; ConnectionFailed if there is no link."""

    def send_state(
        self, segment: int, key: StateKey, whole: memoryview, sha256: bytes, unit: int | None = None
    ) -> None:
        """Queue one piece of a segment's state for the submitter."""


@dataclass
class _Arriving:
    """A copy that another worker sends; `failure` says why its slices are dropped.

    Of the bytes that were `taken` so many are `written`: on disk, or dropped. `told`: the broker has heard of
    the failure.
    """

    copy: HeldCopy
    sender: str
    left: int
    opened: set[int] = field(default_factory=set)
    taken: int = 0  # counted by the event loop
    written: int = 0  # counted by the thread for files
    told: bool = False
    file: IncomingCopy | None = None
    failure: str = ""


class Copying:
    """See the module. `store` is None if the owner of this machine lets copies take no disk.

    Copies for protection leave at `pace`.
    """

    def __init__(
        self,
        worker: str,
        store: CopyStore | None,
        links: Sending,
        tell: Callable[[Message], None],
        limits: Callable[[], Timeouts],
        pace: Pace = ANY_PACE,
    ) -> None:
        self._worker, self._store, self._links, self._tell = worker, store, links, tell
        self._limits, self._pace = limits, pace
        self._files = ThreadPoolExecutor(1, thread_name_prefix="farflung-copies")
        self._load: Load | None = None
        self._standbys: Mapping[str, str] = {}
        self._owners: set[str] = set()
        self._linked: dict[str, asyncio.Event] = {}
        self._arriving: dict[tuple[StateVersion, int], _Arriving] = {}
        self._given: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned = ""

    async def held(self) -> list[HeldCopy]:
        """The copies on this worker's disk."""
        return [] if self._store is None else await self._on_files(self._store.held)

    @property
    def disk_bytes(self) -> int:
        """What copies may take on this worker's disk; 0 if there are to be none."""
        return 0 if self._store is None else self._store.limit_bytes

    # Attempts and links

    def begin(self, load: Load) -> None:
        """An attempt begins: copies are made, held and given for it from now on."""
        self.end()
        self._load = load
        self._owners = {owner for owner, holder in load.holders.items() if holder == self._worker}
        for donor, taker, share in load.gifts:
            if taker == self._worker:
                self._given[share] = asyncio.get_running_loop().create_future()
            if donor == self._worker:
                self._spawn(self._give(load, taker, share))

    def change_standbys(self, standbys: Mapping[str, str]) -> None:
        """From the next version on these hold copies, by owner, before the load's holders.

        A version before may still arrive here, so this worker goes on to take the copies of those that it
        held for until now.
        """
        self._standbys = standbys
        self._owners |= {owner for owner, standby in standbys.items() if standby == self._worker}

    def end(self) -> None:
        """The attempt is over: what is on its way is dropped."""
        for task in self._tasks:
            task.cancel()
        for arriving in self._arriving.values():
            if arriving.file is not None:
                self._files.submit(arriving.file.close)
        self._load, self._given, self._arriving, self._linked = None, {}, {}, {}
        self._standbys, self._owners = {}, set()

    def linked(self, peer: str) -> None:
        """There is a link to `peer`."""
        self._link_to(peer).set()

    def lost(self, peer: str) -> None:
        """The link to `peer` is lost for good."""
        self._linked.pop(peer, None)
        for key, arriving in list(self._arriving.items()):
            if arriving.sender == peer:
                self._drop(key, "the link was lost")

    async def close(self) -> None:
        """End everything, and wait for the files."""
        self.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._files.shutdown)

    # Own copies

    def made(self, copied: StateCopied) -> None:
        """Send a copy of this worker's state where it is to go."""
        load = self._load
        if load is not None and copied.attempt == (load.job, load.attempt):
            self._spawn(self._spread(load, copied))

    async def _spread(self, load: Load, copied: StateCopied) -> None:
        pieces = copied.pieces
        for piece in sorted(copied.keep):
            digest = await self._on_files(partial(_sha256, pieces[piece]))
            self._links.send_state(piece.segment, piece.key, pieces[piece], digest, copied.unit)
        if not copied.copy:
            return
        version, share = StateVersion(load.attempt, copied.unit), self._share(load, self._worker)
        try:
            copy = await self._on_files(partial(self._disk().write, load.job, version, share, pieces))
            pieces.clear()  # frees the memory that is not on its way to the submitter
            self._tell(_copied(load, copy))
            holder = self._standbys.get(self._worker) or load.holders[self._worker]
            await self._send(load, holder, copy, self._pace)
        except FarflungError as error:
            self._trouble(load, version, share, str(error))

    async def _send(self, load: Load, peer: str, copy: HeldCopy, pace: Pace) -> None:
        """Send a copy's file to another worker, as soon as there is a link to it."""
        try:
            async with asyncio.timeout(self._limits().link_seconds):
                await self._link_to(peer).wait()
        except TimeoutError:
            raise CopyError(f"it could not be sent to {peer}: there is no link") from None
        for offset, size in slices(copy.bytes, pace.piece_bytes):
            await asyncio.sleep(pace.wait_seconds(size, time.monotonic()))
            data = await self._on_files(partial(self._disk().read_slice, copy, offset, size))
            header = SliceHeader(
                load.job, load.attempt, copy.share, COPY.name, offset, size, copy.bytes, copy.sha256,
                COPY.slot, copy.version.unit,
            )  # fmt: skip
            try:
                await self._links.send_slice(peer, header, data)
            except ConnectionFailed:
                raise CopyError(f"it could not be sent to {peer}: the link was lost") from None

    # Copies of others

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
        copy = self._expected(load, peer, header)
        key = (copy.version, copy.share)
        arriving = self._arriving.get(key)
        if arriving is None:
            arriving = self._arriving[key] = _Arriving(copy, peer, copy.bytes)
            self._files.submit(self._open, arriving)
        end = header.offset + header.bytes
        if arriving.copy != copy or end > copy.bytes or header.offset in arriving.opened or not header.bytes:
            raise ProtocolError(f"{peer} sent a slice that does not fit its copy")
        if arriving.taken - arriving.written + header.bytes > MOST_UNWRITTEN_BYTES:
            arriving.failure = arriving.failure or TOO_SLOW
        if arriving.failure:
            self._tell_failure(key, arriving, arriving.failure)
            return None
        arriving.taken += header.bytes
        arriving.opened.add(header.offset)
        return memoryview(bytearray(header.bytes))

    def retract(self, peer: str, header: SliceHeader) -> None:
        """Undo `opening` for a slice that was cut off by a lost link: it will be sent again."""
        load = self._load
        if load is not None and header.attempt == load.attempt:
            copy = self._expected(load, peer, header)
            if arriving := self._arriving.get((copy.version, copy.share)):
                arriving.opened.discard(header.offset)
                arriving.taken -= header.bytes

    def complete(self, peer: str, header: SliceHeader, buffer: memoryview) -> None:
        """Keep a slice that was received completely; the last one completes the copy."""
        load = self._load
        if load is None or header.attempt != load.attempt:
            return
        copy = self._expected(load, peer, header)
        arriving = self._arriving.get((copy.version, copy.share))
        if arriving is None:
            return
        self._files.submit(_write, arriving, header.offset, buffer)
        arriving.left -= header.bytes
        if not arriving.left:
            self._spawn(self._finish(load, arriving))

    async def _finish(self, load: Load, arriving: _Arriving) -> None:
        copy = arriving.copy
        try:
            await self._on_files(partial(_finish, arriving))
        except CopyError as error:
            self._drop((copy.version, copy.share), str(error))
            return
        self._arriving.pop((copy.version, copy.share), None)
        if copy.version == load.version and copy.share in self._given:
            if not self._given[copy.share].done():
                self._given[copy.share].set_result(None)
        else:
            self._tell(_copied(load, copy))

    def _drop(self, key: tuple[StateVersion, int], reason: str) -> None:
        """Give up a copy that was on its way here, and say so."""
        arriving = self._arriving.pop(key)
        if arriving.file is not None:
            self._files.submit(arriving.file.close)
        self._tell_failure(key, arriving, reason)

    def _tell_failure(self, key: tuple[StateVersion, int], arriving: _Arriving, reason: str) -> None:
        """Say once that a copy does not get here; what still comes of it is dropped."""
        load = self._load
        if load is None or arriving.told:
            return
        arriving.told = True
        if key[0] != load.version:
            self._trouble(load, *key, reason)
        elif (given := self._given.get(key[1])) is not None and not given.done():
            given.set_exception(CopyError(reason))

    def _expected(self, load: Load, peer: str, header: SliceHeader) -> HeldCopy:
        """The copy that a slice is part of, if this worker holds it for `peer` or gets it from there."""
        assert header.unit is not None
        key = StateKey(header.name, header.slot)
        version = load.version
        is_given = (peer, self._worker, header.segment) in load.gifts
        if is_given and version is not None and version.unit == header.unit:
            known = version
        elif peer in self._owners and header.segment == self._share(load, peer):
            known = StateVersion(load.attempt, header.unit)
        else:
            raise ProtocolError(f"{peer} sent a copy of its state, which the plan does not expect")
        if key != COPY:
            raise ProtocolError(f"{peer} sent {key} with a unit, which only copies have")
        return HeldCopy(load.job, known, header.segment, header.sha256, header.total)

    def _open(self, arriving: _Arriving) -> None:
        try:
            arriving.file = self._disk().receive(arriving.copy)
        except CopyError as error:
            arriving.failure = str(error)

    # Going back to a version

    async def restore(self, load: Load, receiver: StateReceiver) -> bool:
        """Fill `receiver` from this worker's copies of the version; says whether it could.

        If another worker gives a copy, wait for that. Raises CopyError if an intact copy does not fit.
        """
        assert load.version is not None
        for share in sorted(load.shares_for(self._worker)):
            try:
                if (given := self._given.get(share)) is not None:
                    await given
                copy = await self._on_files(partial(self._disk().find, load.job, load.version, share))
                misfit = await self._on_files(partial(self._disk().read_fitting, copy, receiver.place))
            except CopyError as error:
                self._lose(load, share, str(error))
                return False
            if misfit:
                raise CopyError(one_line(f"share {share} of the job's state: {misfit}"))
        receiver.trust()
        return True

    async def _give(self, load: Load, taker: str, share: int) -> None:
        """Send another member a share of the version that it lacks."""
        assert load.version is not None
        try:
            copy = await self._on_files(partial(self._disk().find, load.job, load.version, share))
            await self._on_files(partial(self._disk().verify, copy))
        except CopyError as error:
            self._lose(load, share, str(error))
            return
        try:
            await self._send(load, taker, copy, ANY_PACE)
        except CopyError as error:  # the taker notices by its link
            log.warning("a copy of %s did not reach %s: %s", load.job, taker, error)

    def _lose(self, load: Load, share: int, reason: str) -> None:
        """Say that a copy on which the broker counts cannot be used, and delete what is left of it."""
        assert load.version is not None
        self._tell(CopyLost(load.job, load.attempt, load.version, share, one_line(reason)))
        if self._store is not None:
            self._files.submit(self._store.delete_share, load.job, load.version, share)

    def retain(self, message: Retain) -> None:
        """Delete the copies that no one needs any more."""
        if self._store is not None:
            self._files.submit(self._store.retain, message.job, message.versions, message.up_to)

    def _trouble(self, load: Load, version: StateVersion, share: int, reason: str) -> None:
        """Say that there is no copy of a share here, once in the log of this worker."""
        reason = one_line(reason)
        if self._warned != load.job:
            self._warned = load.job
            log.warning("job %s goes on without a copy of its state here: %s", load.job, reason)
        self._tell(Copied(load.job, load.attempt, version.unit, share, trouble=reason))

    def _share(self, load: Load, worker: str) -> int:
        return min(load.plan.segments_of(worker))

    def _disk(self) -> CopyStore:
        if self._store is None:
            raise CopyError(NO_DISK)
        return self._store

    def _link_to(self, peer: str) -> asyncio.Event:
        return self._linked.setdefault(peer, asyncio.Event())

    async def _on_files(self, call: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._files, call)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _copied(load: Load, copy: HeldCopy) -> Copied:
    return Copied(load.job, load.attempt, copy.version.unit, copy.share, copy.sha256, copy.bytes)


def _sha256(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def _write(arriving: _Arriving, offset: int, data: memoryview) -> None:
    if arriving.file is None or arriving.failure:
        arriving.written += len(data)
        return
    try:
        arriving.file.write(offset, data)
    except CopyError as error:
        arriving.failure = str(error)
    arriving.written += len(data)


def _finish(arriving: _Arriving) -> None:
    if arriving.file is None or arriving.failure:
        raise CopyError(arriving.failure)
    arriving.file.finish()

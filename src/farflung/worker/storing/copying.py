"""The copies of an attempt: this worker's own, those that it holds for others, and those that it gives.

A copy travels as the file that it is on disk, in slices, and is verified by the digest of the whole. Whoever
gets one and lacks the base that it names asks its sender for that, and has the copy once both are verified.
So what training does not change is sent to each holder once.

All methods belong to the event loop; files are read, written and hashed on one thread. A copy that fails
never ends the attempt: it only leaves the job less protected, and the broker hears why.
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
from typing import Any, NamedTuple, Protocol, TypeVar

from farflung.errors import ConnectionFailed, CopyError, FarflungError, ProtocolError
from farflung.protocol.copies import AskBase, Copied, CopyLost, HeldCopy, Retain, StateVersion
from farflung.protocol.fields import one_line
from farflung.protocol.messages import Load, Message
from farflung.runtime.state import StateKey
from farflung.transport.link.governor import ANY_PACE, Pace
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import SLICE_BYTES, SliceHeader, slices
from farflung.worker.computing.outcomes import StateCopied
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.storing.copy_format import Base
from farflung.worker.storing.copy_store import CopyStore, IncomingFile

log = logging.getLogger("farflung.worker")

_Result = TypeVar("_Result")

COPY = StateKey("", "copy")
"""The key of the slices of a copy's file."""

BASE = StateKey("", "base")
"""The key of the slices of a base."""

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

    def ask_base(self, peer: str, message: AskBase) -> None:
        """Ask a peer for the base of a copy that it sent; nothing if there is no link."""


class _Key(NamedTuple):
    """A copy that another worker sends."""

    version: StateVersion
    share: int


class _BaseKey(NamedTuple):
    """A base that another worker sends; copies of several versions may wait for it."""

    share: int
    sha256: bytes


@dataclass
class _Arriving:
    """A file of `total` bytes that another worker sends; `failure` says why its slices are dropped.

    Of the bytes that were `taken` so many are `written`: on disk, or dropped. `told`: the broker has heard of
    the failure. A copy that is whole `lacks` the base that it names until that has come, too.
    """

    sha256: bytes
    total: int
    sender: str
    left: int
    opened: set[int] = field(default_factory=set)
    taken: int = 0  # counted by the event loop
    written: int = 0  # counted by the thread for files
    told: bool = False
    file: IncomingFile | None = None
    failure: str = ""
    lacks: Base | None = None


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
        self._arriving: dict[_Key, _Arriving] = {}
        self._bases: dict[_BaseKey, _Arriving] = {}
        self._sent: dict[tuple[str, StateVersion, int], tuple[HeldCopy, Pace]] = {}
        self._base: Base | None = None
        self._knows_base = False
        self._given: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned = ""

    async def held(self) -> list[HeldCopy]:
        """The copies on this worker's disk."""
        return [] if self._store is None else await self._on_files(self._store.held)

    async def measure_disk(self) -> int:
        """What copies may take on this worker's disk now; 0 if there are to be none."""
        return 0 if self._store is None else await self._on_files(lambda: self._disk().limit_bytes)

    # Attempts and links

    @property
    def lacks_base(self) -> bool:
        """Whether the next version of this worker's share is to come with its base."""
        return not self._knows_base

    def forget_base(self) -> None:
        """Another share is loaded: it has another base."""
        self._knows_base = False

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
        for arriving in (*self._arriving.values(), *self._bases.values()):
            self._files.submit(_close, arriving)
        self._load, self._given, self._arriving, self._bases = None, {}, {}, {}
        self._linked, self._sent = {}, {}
        self._standbys, self._owners = {}, set()

    def linked(self, peer: str) -> None:
        """There is a link to `peer`."""
        self._link_to(peer).set()

    def lost(self, peer: str) -> None:
        """The link to `peer` is lost for good."""
        self._linked.pop(peer, None)
        for key in [key for key, arriving in self._arriving.items() if arriving.sender == peer]:
            self._drop(key, "the link was lost")
        for base in [base for base, arriving in self._bases.items() if arriving.sender == peer]:
            self._drop_base(base, "the link was lost")

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
        for piece in sorted(pieces) if copied.keep else ():
            digest = await self._on_files(partial(_sha256, pieces[piece]))
            self._links.send_state(piece.segment, piece.key, pieces[piece], digest, copied.unit)
        if not copied.copy:
            return
        version, share = StateVersion(load.attempt, copied.unit), self._share(load, self._worker)
        try:
            base = None if copied.base is not None else self._known_base()
            self._knows_base = False  # until this one is on disk
            copy, base = await self._on_files(
                partial(_written, self._disk(), load.job, version, share, copied, base)
            )
            self._base, self._knows_base = base, True
            pieces.clear()  # frees the memory that is not on its way to the submitter
            self._tell(_copied(load, copy))
            holder = self._standbys.get(self._worker) or load.holders[self._worker]
            await self._send(load, holder, copy, self._pace)
        except FarflungError as error:
            self._trouble(load, version, share, str(error))

    def _known_base(self) -> Base | None:
        if not self._knows_base:
            raise CopyError("what training does not change of the share did not come along")
        return self._base

    async def _send(self, load: Load, peer: str, copy: HeldCopy, pace: Pace) -> None:
        """Send a copy's file to another worker, as soon as there is a link to it."""
        try:
            async with asyncio.timeout(self._limits().link_seconds):
                await self._link_to(peer).wait()
        except TimeoutError:
            raise CopyError(f"it could not be sent to {peer}: there is no link") from None
        self._sent[peer, copy.version, copy.share] = copy, pace
        await self._send_file(load, peer, copy, None, pace)

    async def _send_file(self, load: Load, peer: str, copy: HeldCopy, base: Base | None, pace: Pace) -> None:
        """Send a copy, or instead the base that it names, in slices."""
        disk, key = self._disk(), COPY if base is None else BASE
        path = disk.path_of(copy) if base is None else disk.path_of_base(copy.job, copy.share, base)
        sha256, total = (copy.sha256, copy.bytes) if base is None else base
        for offset, size in slices(total, pace.piece_bytes):
            await asyncio.sleep(pace.wait_seconds(size, time.monotonic()))
            data = await self._on_files(partial(disk.read_slice, path, offset, size))
            header = SliceHeader(
                load.job, load.attempt, copy.share, key.name, offset, size, total, sha256, key.slot,
                copy.version.unit,
            )  # fmt: skip
            try:
                await self._links.send_slice(peer, header, data)
            except ConnectionFailed:
                raise CopyError(f"it could not be sent to {peer}: the link was lost") from None

    def asked(self, peer: str, message: AskBase) -> None:
        """Send a worker the base of a copy that it got from here, once."""
        load = self._load
        if load is None or (message.job, message.attempt) != (load.job, load.attempt):
            return
        if (sent := self._sent.pop((peer, message.version, message.share), None)) is not None:
            self._spawn(self._send_base(load, peer, *sent))

    async def _send_base(self, load: Load, peer: str, copy: HeldCopy, pace: Pace) -> None:
        try:
            base = await self._on_files(partial(self._disk().base_of, copy))
            if base is not None:
                await self._send_file(load, peer, copy, base, pace)
        except CopyError as error:
            if copy.version == load.version:  # the taker notices by its link
                log.warning("a copy of %s did not reach %s: %s", load.job, peer, error)
            else:
                self._trouble(load, copy.version, copy.share, str(error))

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
        key = self._expected(load, peer, header)
        arriving = self._arriving_file(header, key)
        if arriving is None:
            if header.slot == BASE.slot:
                return None  # it was not asked for, or is given up
            arriving = self._arriving[key] = _Arriving(header.sha256, header.total, peer, header.total)
            self._files.submit(self._open, load.job, key, arriving)
        is_same = (arriving.sha256, arriving.total, arriving.sender) == (header.sha256, header.total, peer)
        is_new = header.bytes and header.offset not in arriving.opened
        if not is_same or not is_new or header.offset + header.bytes > header.total:
            raise ProtocolError(f"{peer} sent a slice that does not fit its copy")
        if arriving.taken - arriving.written + header.bytes > MOST_UNWRITTEN_BYTES:
            arriving.failure = arriving.failure or TOO_SLOW
        if arriving.failure:
            if header.slot == BASE.slot:
                self._drop_base(_BaseKey(key.share, header.sha256), arriving.failure)
            else:
                self._tell_failure(key, arriving, arriving.failure)
            return None
        arriving.taken += header.bytes
        arriving.opened.add(header.offset)
        return memoryview(bytearray(header.bytes))

    def _arriving_file(self, header: SliceHeader, key: _Key) -> _Arriving | None:
        """The file that a slice is part of, if it has begun to arrive."""
        if header.slot == BASE.slot:
            return self._bases.get(_BaseKey(key.share, header.sha256))
        return self._arriving.get(key)

    def retract(self, peer: str, header: SliceHeader) -> None:
        """Undo `opening` for a slice that was cut off by a lost link: it will be sent again."""
        load = self._load
        if load is None or header.attempt != load.attempt:
            return
        if arriving := self._arriving_file(header, self._expected(load, peer, header)):
            arriving.opened.discard(header.offset)
            arriving.taken -= header.bytes

    def complete(self, peer: str, header: SliceHeader, buffer: memoryview) -> None:
        """Keep a slice that was received completely; the last one completes the copy, or its base."""
        load = self._load
        if load is None or header.attempt != load.attempt:
            return
        key = self._expected(load, peer, header)
        arriving = self._arriving_file(header, key)
        if arriving is None:
            return
        self._files.submit(_write, arriving, header.offset, buffer)
        arriving.left -= header.bytes
        if arriving.left:
            return
        if header.slot == BASE.slot:
            self._spawn(self._finish_base(load, _BaseKey(key.share, header.sha256), arriving))
        else:
            self._spawn(self._finish(load, key, arriving))

    async def _finish(self, load: Load, key: _Key, copy: _Arriving) -> None:
        """A copy is whole: put it on disk. If the base that it names is not there, ask for that first."""
        if copy.failure:
            return
        try:
            base, copy.lacks = await self._on_files(partial(_put, self._disk(), load.job, key, copy))
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
            self._tell(_copied(load, _held(load.job, key, copy, base)))

    def _ask_base(self, load: Load, key: _Key, sender: str, base: Base) -> None:
        """Ask for a base, unless it comes already for the copy of an earlier version."""
        of = _BaseKey(key.share, base.sha256)
        if of not in self._bases:
            arriving = self._bases[of] = _Arriving(base.sha256, base.bytes, sender, base.bytes)
            self._files.submit(self._open_base, load.job, of, arriving)
            self._links.ask_base(sender, AskBase(load.job, load.attempt, key.version, key.share))

    async def _finish_base(self, load: Load, of: _BaseKey, arriving: _Arriving) -> None:
        """A base is whole: put it on disk, and then the copies that wait for it."""
        try:
            await self._on_files(partial(_put_base, arriving))
        except CopyError as error:
            self._drop_base(of, str(error))
            return
        self._bases.pop(of, None)
        for key, copy in self._waiting_for(of):
            await self._finish(load, key, copy)

    def _waiting_for(self, of: _BaseKey) -> list[tuple[_Key, _Arriving]]:
        return [
            (key, copy)
            for key, copy in self._arriving.items()
            if key.share == of.share and copy.lacks is not None and copy.lacks.sha256 == of.sha256
        ]

    def _drop(self, key: _Key, reason: str) -> None:
        """Give up a copy that was on its way here, and say so."""
        if (copy := self._arriving.pop(key, None)) is not None:
            self._files.submit(_close, copy)
            self._tell_failure(key, copy, reason)

    def _drop_base(self, of: _BaseKey, reason: str) -> None:
        """Give up a base that was on its way here, and the copies that wait for it."""
        if (arriving := self._bases.pop(of, None)) is not None:
            self._files.submit(_close, arriving)
        for key, _ in self._waiting_for(of):
            self._drop(key, reason)

    def _tell_failure(self, key: _Key, copy: _Arriving, reason: str) -> None:
        """Say once that a copy does not get here; what still comes of it is dropped."""
        load = self._load
        if load is None or copy.told:
            return
        copy.told, copy.failure = True, copy.failure or reason
        if key.version != load.version:
            self._trouble(load, key.version, key.share, reason)
        elif (given := self._given.get(key.share)) is not None and not given.done():
            given.set_exception(CopyError(reason))

    def _expected(self, load: Load, peer: str, header: SliceHeader) -> _Key:
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
        if key not in (COPY, BASE):
            raise ProtocolError(f"{peer} sent {key} with a unit, which only copies have")
        return _Key(known, header.segment)

    def _open(self, job: str, key: _Key, arriving: _Arriving) -> None:
        try:
            arriving.file = self._disk().receive(_held(job, key, arriving))
        except CopyError as error:
            arriving.failure = str(error)

    def _open_base(self, job: str, of: _BaseKey, arriving: _Arriving) -> None:
        try:
            base = Base(of.sha256, arriving.total)
            arriving.file = self._disk().receive_base(job, of.share, base)
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
        """Delete the copies that no one needs any more, and take no more of those that are on their way."""
        load, shares = self._load, set[int]()
        if load is not None and load.job == message.job:
            owners = {self._worker, *self._owners} & {*load.plan.workers()}
            shares = {self._share(load, owner) for owner in owners}
            self._give_up(message)
        if self._store is not None:
            self._files.submit(self._store.retain, message.job, message.versions, message.up_to, shares)

    def _give_up(self, message: Retain) -> None:
        """Take and give no more of the versions that are deleted; a base goes on, for versions to come."""
        for sent in [one for one in self._sent if _is_deleted(one[1], message)]:
            del self._sent[sent]
        for key, arriving in self._arriving.items():
            if _is_deleted(key.version, message) and not arriving.told:
                arriving.told, arriving.failure = True, "it is needed no more"
                self._files.submit(_close, arriving)

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
    return Copied(
        load.job,
        load.attempt,
        copy.version.unit,
        copy.share,
        copy.sha256,
        copy.bytes,
        base=copy.base,
        base_bytes=copy.base_bytes,
    )


def _held(job: str, key: _Key, arriving: _Arriving, base: Base | None = None) -> HeldCopy:
    return HeldCopy(job, key.version, key.share, arriving.sha256, arriving.total, *(base or ()))


def _is_deleted(version: StateVersion, message: Retain) -> bool:
    return version <= message.up_to and version not in message.versions


def _sha256(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()


# On the thread for files


def _written(
    disk: CopyStore, job: str, version: StateVersion, share: int, copied: StateCopied, base: Base | None
) -> tuple[HeldCopy, Base | None]:
    """Write a copy of this worker's share, and its base before it if that came along."""
    if copied.base:
        base = disk.write_base(job, share, copied.base)
    return disk.write(job, version, share, copied.pieces, base), base


def _write(arriving: _Arriving, offset: int, data: memoryview) -> None:
    if arriving.file is None or arriving.failure:
        arriving.written += len(data)
        return
    try:
        arriving.file.write(offset, data)
    except CopyError as error:
        arriving.failure = str(error)
    arriving.written += len(data)


def _put(disk: CopyStore, job: str, key: _Key, copy: _Arriving) -> tuple[Base | None, Base | None]:
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


def _put_base(arriving: _Arriving) -> None:
    file = _whole(arriving)
    file.verify()
    file.finish()


def _whole(arriving: _Arriving) -> IncomingFile:
    if arriving.file is None or arriving.failure:
        raise CopyError(arriving.failure)
    return arriving.file


def _close(arriving: _Arriving) -> None:
    if arriving.file is not None:
        arriving.file.close()

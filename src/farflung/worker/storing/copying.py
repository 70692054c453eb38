"""The copies of an attempt: this worker's own, those that it holds for others, and those that it gives.

A copy travels as the file that it is on disk, in slices, and is verified by the digest of the whole. A worker
that gets one and lacks the base that it names asks the sender for that base, and has the copy once both are
verified. So what training does not change is sent to each holder once.

All methods belong to the event loop; files are read, written and hashed on one thread. A copy that fails
never ends the attempt: it only leaves the job less protected, and the broker hears why.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from farflung.errors import ConnectionFailed, CopyError, CopyUnfit, FarflungError
from farflung.protocol.checks import PieceDigest
from farflung.protocol.copies import AskBase, Copied, CopyLost, HeldCopy, Retain, StateVersion
from farflung.protocol.fields import one_line
from farflung.protocol.messages import Checked, Load, Message
from farflung.runtime.state import CODERS, StateKey
from farflung.transport.link.governor import ANY_PACE, Pace
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import SliceHeader, slices
from farflung.worker.computing.outcomes import ShareReplayed, StateCopied
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.storing.arrivals import BASE, COPY, Arrivals, share_of
from farflung.worker.storing.copy_format import Base, Piece, copy_digest
from farflung.worker.storing.copy_store import CopyStore
from farflung.worker.storing.file_thread import FileThread

log = logging.getLogger("farflung.worker")

MOST_SENT = 2
"""Copies of one share that are remembered for each peer they were sent to: it may ask for their base."""


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
        self._worker, self._links, self._tell = worker, links, tell
        self._limits, self._pace = limits, pace
        self._files = FileThread(store)
        self.arrivals = Arrivals(
            worker,
            self._files,
            lambda peer, message: links.ask_base(peer, message),
            lambda load, copy: tell(_copied(load, copy)),
            self._trouble,
            self._spawn,
        )
        self._load: Load | None = None
        self._standbys: Mapping[str, str] = {}
        self._linked: dict[str, asyncio.Event] = {}
        self._sent: dict[tuple[str, StateVersion, int], tuple[HeldCopy, Pace]] = {}
        self._begun = b""
        self._base: Base | None = None
        self._knows_base = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._written = threading.Event()
        self._written.set()
        self._warned = ""

    async def held(self) -> list[HeldCopy]:
        """The copies on this worker's disk."""
        store = self._files.store
        return [] if store is None else await self._files.run(store.held)

    async def measure_disk(self) -> int:
        """What copies may take on this worker's disk now; 0 if there are to be none."""
        store = self._files.store
        return 0 if store is None else await self._files.run(lambda: store.limit_bytes)

    # Attempts and links

    @property
    def lacks_base(self) -> bool:
        """Whether the next version of this worker's share is to come with its base."""
        return not self._knows_base

    @property
    def begun(self) -> bytes:
        """The SHA-256 of the copy of the version from which the share was read last; empty if none was."""
        return self._begun

    def forget_base(self) -> None:
        """Another share is loaded: it has another base."""
        self._knows_base = False

    async def checked(self, load: Load, found: ShareReplayed) -> Checked:
        """What a checker says of the share that it ran again."""
        share, version = share_of(load, self._worker), StateVersion(load.attempt, _last(load))
        pieces = (found.pieces | found.base).items()
        asked = [one for one in pieces if load.pieces and one[0].key != CODERS]
        return Checked(
            load.job,
            load.attempt,
            load.check,
            share,
            list(found.units),
            self._begun,
            await self._files.run(partial(copy_digest, load.job, version, share, found.pieces, found.base)),
            await self._files.run(lambda: [_piece_digest(*one) for one in asked]),
        )

    def give(self, version: StateVersion, taker: str, share: int) -> None:
        """Send a worker that has no part in the attempt a share of a version."""
        if self._load is not None:
            load = msgspec.structs.replace(self._load, version=version)
            self._spawn(self._give(load, taker, share))

    def begin(self, load: Load) -> None:
        """An attempt begins: copies are made, held and given for it from now on."""
        self.end()
        self._load, self._begun = load, b""
        self.arrivals.begin(load)
        for donor, taker, share in load.gifts:
            if donor == self._worker:
                self._spawn(self._give(load, taker, share))

    def change_standbys(self, standbys: Mapping[str, str]) -> None:
        """From the next version on these hold copies, by owner, before the load's holders.

        A version before may still arrive here, so this worker goes on to take the copies of those that it
        held for until now.
        """
        self._standbys = standbys
        self.arrivals.take_from(owner for owner, standby in standbys.items() if standby == self._worker)

    def end(self) -> None:
        """The attempt is over: what is on its way is dropped."""
        for task in self._tasks:
            task.cancel()
        self.arrivals.end()
        self._load, self._standbys, self._linked, self._sent = None, {}, {}, {}

    def linked(self, peer: str) -> None:
        """There is a link to `peer`."""
        self._link_to(peer).set()

    def lost(self, peer: str) -> None:
        """The link to `peer` is lost for good."""
        self._linked.pop(peer, None)
        self.arrivals.lost(peer)

    async def close(self) -> None:
        """End everything, and wait for the files."""
        self.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._files.close()

    # Own copies

    def made(self, copied: StateCopied) -> None:
        """Send a copy of this worker's state where it is to go."""
        load = self._load
        if load is not None and copied.attempt == load.key:
            written = threading.Event()
            if copied.copy:
                self._written = written
            task = self._spawn(self._spread(load, copied, written))
            # A write that has begun goes on although its task is cancelled.
            task.add_done_callback(lambda _: self._files.submit(written.set))

    @property
    def wait_until_written(self) -> Callable[[], object]:
        """Waits until the last copy that was made is on disk, or failed: till then it takes memory.

        Call what this returns on another thread than the event loop's.
        """
        return self._written.wait

    async def _spread(self, load: Load, copied: StateCopied, written: threading.Event) -> None:
        pieces = copied.pieces
        is_given = load.plan.pipeline_of(share_of(load, self._worker)) == load.plan.home_pipeline
        kept = [piece for piece in sorted(pieces) if is_given or piece.key == CODERS]
        for piece in kept if copied.keep else ():
            digest = await self._files.run(partial(_sha256, pieces[piece]))
            self._links.send_state(piece.segment, piece.key, pieces[piece], digest, copied.unit)
        if not copied.copy:
            return
        version, share = StateVersion(load.attempt, copied.unit), share_of(load, self._worker)
        try:
            base = None if copied.base is not None else self._known_base()
            self._knows_base = False  # until this one is on disk
            copy, base = await self._files.run(
                partial(_written, self._files.disk(), load.job, version, share, copied, base)
            )
            self._base, self._knows_base = base, True
            pieces.clear()  # frees the memory that is not on its way to the submitter
            written.set()
            self._tell(_copied(load, copy))
            if holder := self._standbys.get(self._worker) or load.holders.get(self._worker):
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
        self._remember(peer, copy, pace)
        await self._send_file(load, peer, copy, None, pace)

    def _remember(self, peer: str, copy: HeldCopy, pace: Pace) -> None:
        """Let the peer ask for the base of this copy, or of the one before, even if it is deleted by then."""
        self._sent[peer, copy.version, copy.share] = copy, pace
        same = [key for key in self._sent if (key[0], key[2]) == (peer, copy.share)]
        for old in same[:-MOST_SENT]:
            del self._sent[old]

    async def _send_file(self, load: Load, peer: str, copy: HeldCopy, base: Base | None, pace: Pace) -> None:
        """Send a copy, or instead the base that it names, in slices."""
        disk, key = self._files.disk(), COPY if base is None else BASE
        path = disk.path_of(copy) if base is None else disk.path_of_base(copy.job, copy.share, base)
        sha256, total = (copy.sha256, copy.bytes) if base is None else base
        for offset, size in slices(total, pace.piece_bytes):
            await asyncio.sleep(pace.wait_seconds(size, time.monotonic()))
            data = await self._files.run(partial(disk.read_slice, path, offset, size))
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
            if copy.base:
                await self._send_file(load, peer, copy, Base(copy.base, copy.base_bytes), pace)
        except CopyError as error:
            if copy.version == load.version:  # the taker notices by its link
                log.warning("a copy of %s did not reach %s: %s", load.job, peer, error)
            else:
                self._trouble(load, copy.version, copy.share, str(error))

    # Going back to a version

    async def restore(self, load: Load, receiver: StateReceiver) -> bool:
        """Fill `receiver` from this worker's copies of the version; says whether it could.

        If another worker gives a copy, wait for that. Raises CopyError if an intact copy does not fit
        or could not be read here; `begun` names it only if it does not fit.
        """
        assert load.version is not None
        for share in sorted(load.shares_for(self._worker)):
            try:
                await self.arrivals.given(share)
                copy = await self._files.run(partial(self._files.disk().find, load.job, load.version, share))
                problem = await self._files.run(
                    partial(self._files.disk().read_fitting, copy, receiver.place)
                )
            except CopyError as error:
                self._lose(load, share, str(error))
                return False
            # What may have other causes than the copy is no proof against the worker that made it.
            self._begun = copy.sha256 if problem is None or isinstance(problem, CopyUnfit) else b""
            if problem is not None:
                raise CopyError(one_line(f"share {share} of the job's state: {problem}"))
        receiver.trust()
        return True

    async def _give(self, load: Load, taker: str, share: int) -> None:
        """Send another member a share of the version that it lacks."""
        assert load.version is not None
        try:
            copy = await self._files.run(partial(self._files.disk().find, load.job, load.version, share))
            await self._files.run(partial(self._files.disk().verify, copy))
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
        if (store := self._files.store) is not None:
            self._files.submit(store.delete_share, load.job, load.version, share)

    def retain(self, message: Retain) -> None:
        """Delete the copies that no one needs any more, and take no more of those that are on their way."""
        load, shares = self._load, set[int]()
        if load is not None and load.job == message.job:
            shares = self.arrivals.shares(load)
            self.arrivals.give_up(message)
        if (store := self._files.store) is not None:
            self._files.submit(store.retain, message.job, message.versions, message.up_to, shares)

    def _trouble(self, load: Load, version: StateVersion, share: int, reason: str) -> None:
        """Say that there is no copy of a share here, once in the log of this worker."""
        reason = one_line(reason)
        if self._warned != load.job:
            self._warned = load.job
            log.warning("job %s goes on without a copy of its state here: %s", load.job, reason)
        self._tell(Copied(load.job, load.attempt, version.unit, share, trouble=reason))

    def _link_to(self, peer: str) -> asyncio.Event:
        return self._linked.setdefault(peer, asyncio.Event())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


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


def _last(load: Load) -> int:
    """The last unit of a load's history."""
    return load.unit + len(load.history) - 1


def _piece_digest(piece: Piece, data: memoryview) -> PieceDigest:
    return PieceDigest(piece.segment, piece.key.name, _sha256(data), piece.key.slot)


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

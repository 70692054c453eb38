"""Copies of shares on a worker's disk: safetensors files that count once they are whole, verified and synced.

A file is `copies/JOB/ATTEMPT-UNIT-SHARE-SHA256.safetensors` in the folder of the worker's identity. Its
tensors are flat bytes, named SEGMENT/NAME/SLOT. The name holds the digest of the whole file, so what is read
back is what was written, and a holder can verify a file whose contents it does not know.

Everything here blocks: call it on a thread for files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from farflung.errors import CopyError
from farflung.files import sync
from farflung.protocol.copies import HeldCopy, StateVersion
from farflung.runtime.state import StateKey

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_HEADER_BYTES = 2**26
"""Largest header of a file that is read."""

_JOB = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FILE = re.compile(r"([0-9]{1,16})-([0-9]{1,16})-([0-9]{1,16})-([0-9a-f]{64})\.safetensors")
_UNFINISHED = ".new"
_CHUNK_BYTES = 2**22


class Piece(NamedTuple):
    """Names one piece of a share's state."""

    segment: int
    key: StateKey


Pieces = Mapping[Piece, memoryview]
Place = Callable[[Piece, int], memoryview | None]
"""The memory for a piece of so many bytes, None if it is not wanted, or CopyError if it is not expected."""


SHARE_OF_DISK = 5
"""Copies may take one part in so many of what is free for them, unless the owner names a limit."""


class CopyStore:
    """The copies of one worker, which take at most `limit_bytes` together; None: a fifth of what is free.

    What an earlier process left unfinished is deleted.
    """

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self._folder = folder / "copies"
        self._limit_bytes = limit_bytes
        self._unfinished_bytes = 0
        for left in self._folder.glob(f"*/*{_UNFINISHED}"):
            left.unlink(missing_ok=True)

    @property
    def limit_bytes(self) -> int:
        """What copies may take now, at least 1: a disk that is full today may have room tomorrow."""
        if self._limit_bytes is not None:
            return self._limit_bytes
        free = shutil.disk_usage(self._folder.parent).free + self._taken()
        return max(1, free // SHARE_OF_DISK)

    def held(self) -> list[HeldCopy]:
        """All copies on the disk, by their names; their contents are verified when they are read."""
        return [copy for path in sorted(self._folder.glob("*/*")) if (copy := _copy_at(path))]

    def write(self, job: str, version: StateVersion, share: int, pieces: Pieces) -> HeldCopy:
        """Write a copy of this worker's own share.

        Raises
        ------
        CopyError
            The disk or the limit is full.
        """
        header = _header(job, version, share, pieces)
        size = len(header) + sum(len(buffer) for buffer in pieces.values())
        digest = hashlib.sha256()
        with self._new_file(job, size) as (file, path):
            for part in (memoryview(header), *pieces.values()):
                file.write(part)
                digest.update(part)
            copy = HeldCopy(job, version, share, digest.digest(), size)
            _finish(file, path, copy)
        return copy

    def receive(self, copy: HeldCopy) -> IncomingCopy:
        """Begin a copy that comes from another worker.

        Raises
        ------
        CopyError
            The disk or the limit is full.
        """
        return IncomingCopy(self, copy)

    def read(self, copy: HeldCopy, place: Place) -> None:
        """Read a copy, each piece into the memory that `place` gives for it, and verify it.

        Raises
        ------
        CopyError
            The copy is missing or damaged, or it is not of the share that `place` knows.
        """
        digest = hashlib.sha256()
        try:
            with self.path_of(copy).open("rb") as file:
                for piece, size in _read_header(file, digest):
                    _read_piece(file, digest, place(piece, size), size)
                if file.read(1):
                    raise CopyError("the file is too long")
        except (OSError, CopyError) as error:
            raise CopyError(f"the copy cannot be read: {_words(error)}") from None
        if digest.digest() != copy.sha256:
            raise CopyError("the copy is damaged: its SHA-256 differs")

    def read_fitting(self, copy: HeldCopy, place: Place) -> str:
        """Read a copy as `read` does; says why an intact one is not what `place` expects, empty if it is.

        Raises
        ------
        CopyError
            The copy is missing or damaged.
        """
        try:
            self.read(copy, place)
        except CopyError as error:
            self.verify(copy)
            return str(error)
        return ""

    def verify(self, copy: HeldCopy) -> None:
        """Raise CopyError if the copy is missing or damaged."""
        try:
            with self.path_of(copy).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise CopyError(f"the copy cannot be read: {_words(error)}") from None
        if found != copy.sha256:
            raise CopyError("the copy is damaged: its SHA-256 differs")

    def read_slice(self, copy: HeldCopy, offset: int, size: int) -> memoryview:
        """Some bytes of a copy's file; CopyError if they cannot be read."""
        try:
            with self.path_of(copy).open("rb") as file:
                file.seek(offset)
                return memoryview(file.read(size))
        except OSError as error:
            raise CopyError(f"the copy cannot be read: {_words(error)}") from None

    def find(self, job: str, version: StateVersion, share: int) -> HeldCopy:
        """The copy of a share; CopyError if there is none."""
        for copy in self.held():
            if (copy.job, copy.version, copy.share) == (job, version, share):
                return copy
        raise CopyError("the copy is no longer on the disk")

    def delete_share(self, job: str, version: StateVersion, share: int) -> None:
        """Delete the copies of one share of a version."""
        for copy in self.held():
            if (copy.job, copy.version, copy.share) == (job, version, share):
                self.delete(copy)

    def retain(self, job: str, versions: Collection[StateVersion], up_to: StateVersion) -> None:
        """Delete the copies of a job up to `up_to` that are of none of `versions`."""
        for copy in self.held():
            if copy.job == job and copy.version <= up_to and copy.version not in versions:
                self.delete(copy)
        with suppress(OSError):
            self._folder_of(job).rmdir()

    def delete(self, copy: HeldCopy) -> None:
        """Delete one copy, if it is there."""
        self.path_of(copy).unlink(missing_ok=True)

    def path_of(self, copy: HeldCopy) -> Path:
        """The file of a copy."""
        version = copy.version
        name = f"{version.attempt}-{version.unit}-{copy.share}-{copy.sha256.hex()}.safetensors"
        return self._folder_of(copy.job) / name

    def _folder_of(self, job: str) -> Path:
        if not _JOB.fullmatch(job):
            raise CopyError(f"no folder can be named after the job {job[:64]!r}")
        return self._folder / job

    def _taken(self) -> int:
        return sum(copy.bytes for copy in self.held()) + self._unfinished_bytes

    @contextmanager
    def _new_file(self, job: str, size: int) -> Iterator[tuple[IO[bytes], Path]]:
        """A new file of a job under an unfinished name; deleted unless it is renamed."""
        taken, most = self._taken(), self.limit_bytes
        if taken + size > most:
            limit = f"the {most / 1e9:.2f} GB that they may use on this disk"
            raise CopyError(
                f"copies take {taken / 1e9:.2f} of {limit}, another one takes {size / 1e9:.2f}:"
                " raise `farflung join --disk`"
            )
        folder = self._folder_of(job)
        self._unfinished_bytes += size
        try:
            _make_private(self._folder)
            _make_private(folder)
            path = folder / f"{os.getpid()}-{os.urandom(8).hex()}{_UNFINISHED}"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                try:
                    yield file, path
                finally:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise CopyError(f"a copy cannot be written: {_words(error)}") from None
        finally:
            self._unfinished_bytes -= size


class IncomingCopy:
    """A copy that arrives in slices, in any order. Call `close` if it is not finished."""

    def __init__(self, store: CopyStore, copy: HeldCopy) -> None:
        self._opening = store._new_file(copy.job, copy.bytes)
        self._copy = copy
        self._file, self._path = self._opening.__enter__()

    def write(self, offset: int, data: memoryview) -> None:
        """Write one slice; CopyError if the disk refuses it."""
        try:
            self._file.seek(offset)
            self._file.write(data)
        except OSError as error:
            raise CopyError(f"a copy cannot be written: {_words(error)}") from None

    def finish(self) -> HeldCopy:
        """Verify the whole copy and put it on disk; CopyError if it is damaged or the disk refuses."""
        try:
            self._file.flush()
            with self._path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").digest()
            if found != self._copy.sha256:
                raise CopyError("the copy was damaged on the way: its SHA-256 differs")
            _finish(self._file, self._path, self._copy)
        except OSError as error:
            raise CopyError(f"a copy cannot be written: {_words(error)}") from None
        finally:
            self.close()
        return self._copy

    def close(self) -> None:
        """Delete what is not finished."""
        with suppress(CopyError):
            self._opening.__exit__(None, None, None)


@dataclass(frozen=True)
class _Entry:
    piece: Piece
    start: int
    stop: int


def _header(job: str, version: StateVersion, share: int, pieces: Pieces) -> bytes:
    """The header of a safetensors file: its length, then JSON that pads the data to 8 bytes."""
    about = {"job": job, "attempt": version.attempt, "unit": version.unit, "share": share}
    header: dict[str, object] = {"__metadata__": {name: str(value) for name, value in about.items()}}
    at = 0
    for piece, buffer in pieces.items():
        name = f"{piece.segment}/{piece.key.name}/{piece.key.slot}"
        stop = at + len(buffer)
        header[name] = {"dtype": "U8", "shape": [len(buffer)], "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _read_header(file: IO[bytes], digest: hashlib._Hash) -> list[tuple[Piece, int]]:
    """The pieces of a file and their sizes, in the order in which they follow the header."""
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if length > MOST_HEADER_BYTES:
        raise CopyError("the file does not begin with a header")
    text = file.read(length)
    digest.update(first + text)
    try:
        found = json.loads(text)
        found.pop("__metadata__", None)
        entries = sorted(
            (_entry(name, value) for name, value in found.items()), key=lambda one: (one.start, one.stop)
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CopyError("its header is damaged") from None
    at = 0
    for entry in entries:
        if entry.start != at or entry.stop < at:
            raise CopyError("its header is damaged")
        at = entry.stop
    return [(entry.piece, entry.stop - entry.start) for entry in entries]


def _read_piece(file: BufferedReader, digest: hashlib._Hash, buffer: memoryview | None, size: int) -> None:
    """Read the next bytes of a file into `buffer`, or pass over them."""
    left = size
    while buffer is None and left:
        passed = file.read(min(left, _CHUNK_BYTES))
        if not passed:
            raise CopyError("the file is too short")
        digest.update(passed)
        left -= len(passed)
    if buffer is not None:
        if file.readinto(buffer) != size:
            raise CopyError("the file is too short")
        digest.update(buffer)


def _entry(name: str, value: dict[str, list[int]]) -> _Entry:
    segment, rest = name.split("/", 1)
    tensor, slot = rest.rsplit("/", 1)
    start, stop = map(int, value["data_offsets"])
    return _Entry(Piece(int(segment), StateKey(tensor, slot)), start, stop)


def _finish(file: IO[bytes], unfinished: Path, copy: HeldCopy) -> None:
    """Put a whole file on disk under the name by which it counts."""
    file.flush()
    os.fsync(file.fileno())
    version = copy.version
    name = f"{version.attempt}-{version.unit}-{copy.share}-{copy.sha256.hex()}.safetensors"
    unfinished.rename(unfinished.with_name(name))
    sync(unfinished.parent)


def _copy_at(path: Path) -> HeldCopy | None:
    """The copy that a file's name says it is; None if the file is no copy."""
    found = _FILE.fullmatch(path.name)
    if found is None or not _JOB.fullmatch(path.parent.name):
        return None
    attempt, unit, share = (int(number) for number in found.groups()[:3])
    try:
        size = path.stat().st_size
    except OSError:  # deleted since
        return None
    return HeldCopy(path.parent.name, StateVersion(attempt, unit), share, bytes.fromhex(found[4]), size)


def _make_private(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(mode=0o700)
        sync(folder.parent)


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return "the disk is full" if error.errno == errno.ENOSPC else error.strerror or type(error).__name__
    return str(error)

"""Copies of shares on a worker's disk: safetensors files that count once they are whole, verified and synced.

A file is `copies/JOB/ATTEMPT-UNIT-SHARE-SHA256.safetensors` in the folder of the worker's identity. The name
holds the digest of the whole file, so what is read back is what was written, and a holder can verify a file
whose contents it does not know. What training does not change is in a file of its own beside it, the share's
*base* `base-SHARE-SHA256.safetensors`, which is written once: the copies of all versions name it
(`copy_format`). A copy counts only while the base that it names is there.

Everything here blocks: call it on a thread for files.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Collection
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from farflung.errors import CopyError, CopyUnfit
from farflung.files import sync
from farflung.protocol.copies import HeldCopy, StateVersion
from farflung.worker.storing.copy_format import (
    Base,
    Pieces,
    Place,
    base_header,
    copy_header,
    read_base,
    read_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_JOB = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FILE = re.compile(r"([0-9]{1,16})-([0-9]{1,16})-([0-9]{1,16})-([0-9a-f]{64})\.safetensors")
_BASE = re.compile(r"base-([0-9]{1,16})-([0-9a-f]{64})\.safetensors")
_UNFINISHED = ".new"


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
        self._verified: set[Path] = set()  # the bases that this process has written or verified
        for left in self._folder.glob(f"*/*{_UNFINISHED}"):
            left.unlink(missing_ok=True)

    @property
    def limit_bytes(self) -> int:
        """What copies may take now, at least 1: a disk that is full today may have room tomorrow."""
        if self._limit_bytes is not None:
            return self._limit_bytes
        free = shutil.disk_usage(self._folder.parent).free + self.taken_bytes
        return max(1, free // SHARE_OF_DISK)

    def held(self) -> list[HeldCopy]:
        """All copies whose bases are there, too, by their names; contents are verified when they are read."""
        found = []
        for copy in self._copies():
            with suppress(CopyError):
                found.append(self._with_base(copy))
        return found

    def write(
        self, job: str, version: StateVersion, share: int, pieces: Pieces, base: Base | None = None
    ) -> HeldCopy:
        """Write a copy of this worker's own share; all of the share that is not in `pieces` is in its base.

        Raises
        ------
        CopyError
            The disk or the limit is full, or the base is not on the disk.
        """
        if base is not None and not self.has_base(job, share, base):
            raise CopyError("what training does not change of the share is no longer on the disk")
        header = copy_header(job, version, share, pieces, base)
        with self._new_file(job, _size(header, pieces)) as (file, path):
            digest = _write(file, header, pieces)
            copy = HeldCopy(job, version, share, digest, _size(header, pieces), *(base or ()))
            _finish(file, path, _name_of(copy))
        return copy

    def write_base(self, job: str, share: int, pieces: Pieces) -> Base:
        """Write a share's base, unless it is there already.

        Raises
        ------
        CopyError
            The disk or the limit is full.
        """
        header, digest = base_header(pieces), hashlib.sha256()
        for part in (memoryview(header), *pieces.values()):
            digest.update(part)
        base = Base(digest.digest(), _size(header, pieces))
        if not self.has_base(job, share, base):
            with self._new_file(job, base.bytes) as (file, path):
                if _write(file, header, pieces) != base.sha256:
                    raise CopyError("what training is not to change has changed while it was written")
                _finish(file, path, self.path_of_base(job, share, base).name)
            self._verified.add(self.path_of_base(job, share, base))
        return base

    def has_base(self, job: str, share: int, base: Base) -> bool:
        """Whether a share's base is on the disk; it is verified at the first look of each process.

        It is the share's newest base from now on: see `retain`.
        """
        path = self.path_of_base(job, share, base)
        try:
            if path.stat().st_size != base.bytes or path not in self._verified:
                self._require(path, base.sha256)
            os.utime(path)
        except (OSError, CopyError):
            return False
        self._verified.add(path)
        return True

    def base_of(self, copy: HeldCopy) -> Base | None:
        """The base that a copy's file names, there or not; CopyError if the file cannot be read."""
        return _base_in(self.path_of(copy))

    def receive(self, copy: HeldCopy) -> IncomingFile:
        """Begin a copy that comes from another worker.

        Raises
        ------
        CopyError
            The disk or the limit is full.
        """
        return IncomingFile(self, copy.job, _name_of(copy), copy.sha256, copy.bytes)

    def receive_base(self, job: str, share: int, base: Base) -> IncomingFile:
        """Begin a base that comes from another worker; CopyError as in `receive`."""
        name = self.path_of_base(job, share, base).name
        return IncomingFile(self, job, name, base.sha256, base.bytes)

    def read(self, copy: HeldCopy, place: Place) -> None:
        """Read a copy and its base, each piece into the memory that `place` gives for it, and verify both.

        Raises
        ------
        CopyError
            The copy is missing or damaged, or it is not of the share that `place` knows.
        """
        base = self._read(self.path_of(copy), copy.sha256, place)
        if base is not None:
            self._read(self.path_of_base(copy.job, copy.share, base), base.sha256, place)

    def read_fitting(self, copy: HeldCopy, place: Place) -> CopyError | None:
        """Read a copy as `read` does; returns why an intact one could not be read, None if it was.

        That is a CopyUnfit if the copy is not what `place` expects. Else this worker is to blame, and another
        may read the same copy: say, its disk failed once.

        Raises
        ------
        CopyError
            The copy is missing or damaged.
        """
        try:
            self.read(copy, place)
        except CopyError as error:
            self.verify(copy)
            return error
        return None

    def verify(self, copy: HeldCopy) -> None:
        """Raise CopyError if the copy or its base is missing or damaged."""
        self._require(self.path_of(copy), copy.sha256)
        if (base := self.base_of(copy)) is not None:
            self._require(self.path_of_base(copy.job, copy.share, base), base.sha256)

    def read_slice(self, path: Path, offset: int, size: int) -> memoryview:
        """Some bytes of a file of this store; CopyError if they cannot be read."""
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return memoryview(file.read(size))
        except OSError as error:
            raise CopyError(f"the copy cannot be read: {_words(error)}") from None

    def find(self, job: str, version: StateVersion, share: int) -> HeldCopy:
        """The copy of a share; CopyError if it or its base is not there."""
        for copy in self._copies():
            if (copy.job, copy.version, copy.share) == (job, version, share):
                return self._with_base(copy)
        raise CopyError("the copy is no longer on the disk")

    def delete_share(self, job: str, version: StateVersion, share: int) -> None:
        """Delete the copies of one share of a version; a base that was damaged is deleted already."""
        for copy in self._copies():
            if (copy.job, copy.version, copy.share) == (job, version, share):
                self.delete(copy)

    def retain(
        self,
        job: str,
        versions: Collection[StateVersion],
        up_to: StateVersion,
        shares: Collection[int] = (),
    ) -> None:
        """Delete the copies of a job up to `up_to` that are of none of `versions`.

        Of its bases those stay that a copy names, and the newest of each of `shares`, of which more copies
        are to come.
        """
        named = set()
        for copy in self._copies():
            if copy.job != job:
                continue
            if copy.version <= up_to and copy.version not in versions:
                self.delete(copy)
                continue
            with suppress(CopyError):
                if (base := self.base_of(copy)) is not None:
                    named.add(self.path_of_base(job, copy.share, base))
        bases = self._bases_of(job)
        newest = {share: path for share, path in bases if share in shares}
        for _, path in bases:
            if path not in named and path not in newest.values():
                self._delete(path)
        with suppress(OSError):
            self._folder_of(job).rmdir()

    def delete(self, copy: HeldCopy) -> None:
        """Delete one copy, if it is there."""
        self._delete(self.path_of(copy))

    def path_of(self, copy: HeldCopy) -> Path:
        """The file of a copy."""
        return self._folder_of(copy.job) / _name_of(copy)

    def path_of_base(self, job: str, share: int, base: Base) -> Path:
        """The file of a share's base."""
        return self._folder_of(job) / f"base-{share}-{base.sha256.hex()}.safetensors"

    def _read(self, path: Path, sha256: bytes, place: Place) -> Base | None:
        """Read and verify one file; returns the base that it names."""
        try:
            with path.open("rb") as file:
                header, found = read_file(file, place)
        except CopyUnfit:
            raise
        except (OSError, CopyError) as error:
            raise CopyError(f"the copy cannot be read: {_words(error)}") from None
        if found != sha256:
            raise CopyError("the copy is damaged: its SHA-256 differs")
        return header.base

    def _require(self, path: Path, sha256: bytes) -> None:
        """Raise CopyError if a file is missing or damaged. A damaged base is deleted: another may come."""
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise CopyError(f"the copy cannot be read: {_words(error)}") from None
        if found != sha256:
            if _BASE.fullmatch(path.name):
                self._delete(path)
            raise CopyError("the copy is damaged: its SHA-256 differs")

    def _with_base(self, copy: HeldCopy) -> HeldCopy:
        """The copy with the base that it names; CopyError if that is not there."""
        base = self.base_of(copy)
        if base is None:
            return copy
        try:
            size = self.path_of_base(copy.job, copy.share, base).stat().st_size
        except OSError:
            size = -1
        if size != base.bytes:
            raise CopyError("what training does not change of the share is not on the disk")
        return msgspec.structs.replace(copy, base=base.sha256, base_bytes=base.bytes)

    def _copies(self) -> list[HeldCopy]:
        """All copies on the disk by their names alone."""
        return [copy for path in sorted(self._folder.glob("*/*")) if (copy := _copy_at(path))]

    def _bases_of(self, job: str) -> list[tuple[int, Path]]:
        """A job's bases with their shares, the one that was used last at the end."""
        found = [(path, _BASE.fullmatch(path.name)) for path in self._folder_of(job).glob("base-*")]
        return sorted(
            ((int(name[1]), path) for path, name in found if name), key=lambda one: one[1].stat().st_mtime_ns
        )

    def _folder_of(self, job: str) -> Path:
        if not _JOB.fullmatch(job):
            raise CopyError(f"no folder can be named after the job {job[:64]!r}")
        return self._folder / job

    @property
    def taken_bytes(self) -> int:
        """What copies take on the disk, those that arrive included."""
        return sum(map(_size_of, self._folder.glob("*/*.safetensors"))) + self._unfinished_bytes

    def _delete(self, path: Path) -> None:
        self._verified.discard(path)
        path.unlink(missing_ok=True)

    @contextmanager
    def _new_file(self, job: str, size: int) -> Iterator[tuple[IO[bytes], Path]]:
        """A new file of a job under an unfinished name; deleted unless it is renamed."""
        taken, most = self.taken_bytes, self.limit_bytes
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


class IncomingFile:
    """A copy or a base that arrives in slices, in any order. Call `close` if it is not finished."""

    def __init__(self, store: CopyStore, job: str, name: str, sha256: bytes, size: int) -> None:
        self._store, self._name, self._sha256 = store, name, sha256
        self._opening = store._new_file(job, size)
        self._file, self._path = self._opening.__enter__()

    def write(self, offset: int, data: memoryview) -> None:
        """Write one slice; CopyError if the disk refuses it."""
        try:
            self._file.seek(offset)
            self._file.write(data)
        except OSError as error:
            raise CopyError(f"a copy cannot be written: {_words(error)}") from None

    def verify(self) -> Base | None:
        """Verify the whole file; returns the base that it names.

        Raises
        ------
        CopyError
            The file was damaged on its way, or it is none that a worker writes.
        """
        try:
            self._file.flush()
            with self._path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise CopyError(f"a copy cannot be written: {_words(error)}") from None
        if found != self._sha256:
            raise CopyError("the copy was damaged on the way: its SHA-256 differs")
        return _base_in(self._path)

    def finish(self) -> None:
        """Put the file, which is verified, on disk under its name; CopyError if the disk refuses."""
        try:
            _finish(self._file, self._path, self._name)
            self._store._verified.add(self._path.with_name(self._name))
        except OSError as error:
            raise CopyError(f"a copy cannot be written: {_words(error)}") from None
        finally:
            self.close()

    def close(self) -> None:
        """Delete what is not finished."""
        with suppress(CopyError):
            self._opening.__exit__(None, None, None)


def _size(header: bytes, pieces: Pieces) -> int:
    return len(header) + sum(len(buffer) for buffer in pieces.values())


def _write(file: IO[bytes], header: bytes, pieces: Pieces) -> bytes:
    """Write a whole file; returns its SHA-256."""
    digest = hashlib.sha256()
    for part in (memoryview(header), *pieces.values()):
        file.write(part)
        digest.update(part)
    return digest.digest()


def _finish(file: IO[bytes], unfinished: Path, name: str) -> None:
    """Put a whole file on disk under the name by which it counts."""
    file.flush()
    os.fsync(file.fileno())
    unfinished.rename(unfinished.with_name(name))
    sync(unfinished.parent)


def _name_of(copy: HeldCopy) -> str:
    version = copy.version
    return f"{version.attempt}-{version.unit}-{copy.share}-{copy.sha256.hex()}.safetensors"


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


def _base_in(path: Path) -> Base | None:
    """The base that a file names; CopyError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return read_base(file)
    except OSError as error:
        raise CopyError(f"the copy cannot be read: {_words(error)}") from None


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # deleted since
        return 0


def _make_private(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(mode=0o700)
        sync(folder.parent)


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return "the disk is full" if error.errno == errno.ENOSPC else error.strerror or type(error).__name__
    return str(error)

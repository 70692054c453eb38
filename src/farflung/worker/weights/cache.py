"""Base weights on a worker's disk: one file a tensor, named by the SHA-256 of its bytes.

The name says what a file holds, so any job that needs these bytes may use it. A file is compared with its
name whenever it is read: a damaged one is deleted, and counts as missing.

Everything here blocks: call it on a thread for files.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from farflung.files import make_folder, sync
from farflung.text import format_bytes
from farflung.worker.storing.copy_store import SHARE_OF_DISK

log = logging.getLogger("farflung.worker")

_FILE = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = ".new"


class WeightCache:
    """The tensors that this worker keeps, in `weights` in the folder of its identity.

    With the copies of jobs' state, which go first and take `copied_bytes`, they take at most `limit_bytes`;
    None: a fifth of what is free for both. Those that were not used for the longest time are deleted first.
    The folder is read once, and `copied_bytes` called once until `shrink`: a model may have many tensors.
    """

    def __init__(self, folder: Path, limit_bytes: int | None, copied_bytes: Callable[[], int]) -> None:
        self._folder = folder / "weights"
        self._limit_bytes = limit_bytes
        self._copied_bytes = copied_bytes
        self._warned = False
        self._sizes: dict[str, int] | None = None  # by file name, the one used last at the end
        self._copied: int | None = None
        for left in self._folder.glob(f"*{_UNFINISHED}"):
            left.unlink(missing_ok=True)

    def read(self, sha256: bytes, memory: memoryview) -> bool:
        """Read the tensor with this digest into `memory`, which has its size; whether it is there, intact."""
        path = self._path_of(sha256)
        try:
            with path.open("rb") as file:
                is_whole = file.readinto(memory) == len(memory) and not file.read(1)
        except OSError:
            return False
        if not is_whole or hashlib.sha256(memory).digest() != sha256:
            log.warning("base weights in %s are damaged, and are fetched again", path)
            with suppress(OSError):
                self._delete(path.name)
            return False
        with suppress(OSError):
            os.utime(path)
        self._use(path.name, len(memory))
        return True

    def keep(self, sha256: bytes, memory: memoryview) -> bool:
        """Keep the tensor with this digest, if there is room for it; whether it is on the disk now.

        A disk that refuses costs no job: that is logged once.
        """
        path = self._path_of(sha256)
        try:
            if path.exists():
                return True
            if hashlib.sha256(memory).digest() != sha256 or not self._make_room(len(memory)):
                return False
            make_folder(self._folder)
            self._folder.chmod(0o700)
            self._write(path, memory)
        except OSError as error:
            self._warn(error)
            return False
        self._use(path.name, len(memory))
        return True

    def shrink(self) -> None:
        """Delete what no longer fits beside the copies of jobs' state, whose size is measured anew."""
        try:
            self._copied = None
            self._make_room(0)
        except OSError as error:
            self._warn(error)

    @property
    def taken_bytes(self) -> int:
        """What the cache takes on the disk."""
        return sum(self._cached().values())

    def _write(self, path: Path, memory: memoryview) -> None:
        unfinished = path.with_name(f"{os.urandom(8).hex()}{_UNFINISHED}")
        try:
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(memory)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)
        finally:
            unfinished.unlink(missing_ok=True)
        sync(self._folder)

    def _make_room(self, size: int) -> bool:
        """Delete the tensors that were not used for the longest time until `size` bytes more fit."""
        cached = self._cached()
        taken = sum(cached.values())
        most = self._most_bytes(taken)
        if size > most:
            return False
        for name, bytes_of_one in list(cached.items()):
            if taken + size <= most:
                break
            self._delete(name)
            taken -= bytes_of_one
            log.info("dropped %s of base weights from the disk", format_bytes(bytes_of_one))
        return taken + size <= most

    def _most_bytes(self, taken: int) -> int:
        if self._copied is None:
            self._copied = self._copied_bytes()
        copied = self._copied
        if self._limit_bytes is not None:
            return max(0, self._limit_bytes - copied)
        free = shutil.disk_usage(self._folder.parent).free + taken + copied
        return max(0, free // SHARE_OF_DISK - copied)

    def _cached(self) -> dict[str, int]:
        """The sizes of all tensors, by the names of their files; those used last are at the end."""
        if self._sizes is None:
            found = []
            for path in self._folder.glob("*"):
                with suppress(OSError):  # deleted since
                    if _FILE.fullmatch(path.name):
                        stat = path.stat()
                        found.append((stat.st_mtime_ns, path.name, stat.st_size))
            self._sizes = {name: size for _, name, size in sorted(found)}
        return self._sizes

    def _use(self, name: str, size: int) -> None:
        cached = self._cached()
        cached.pop(name, None)
        cached[name] = size

    def _delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)
        self._cached().pop(name, None)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            log.warning("base weights cannot be kept in %s: %s", self._folder, error.strerror)
        self._warned = True

    def _path_of(self, sha256: bytes) -> Path:
        return self._folder / sha256.hex()

"""Files that a killed process leaves either old or new, and where what can be made again is kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write `data` to `path` under a temporary name in the same folder, then rename it there.

    The file has `mode` from the moment it holds its first byte. Both the file and the rename are on disk
    when this returns. Any `OSError` (a full disk, say) leaves the old file and no temporary one.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".new")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """An empty folder to write files into, which then takes the place of the folder `path`, if there is one.

    Its files must be on disk when the block ends. An exception leaves the old folder. A kill between the two
    renames leaves the old one as `.NAME.old` beside it, and the next call puts that back first.
    """
    fresh, old = (path.with_name(f".{path.name}.{kind}") for kind in ("new", "old"))
    shutil.rmtree(fresh, ignore_errors=True)
    if old.exists() and not path.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        sync(fresh)
        if path.exists():
            path.rename(old)
        fresh.rename(path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing; all of their names are on disk then."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Put on disk what was written to a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_folder() -> Path:
    """Where this user's programs keep what they can make again: `cache` in FARFLUNG_HOME if that is set."""
    if home := os.environ.get("FARFLUNG_HOME"):
        return Path(home).expanduser() / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "farflung"

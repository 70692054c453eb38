"""Compiled programs on disk: a worker that starts again need not compile what it ran before.

Reading takes a tenth of the time that compiling does (docs/measurements/models.md). What lies there
is code, so nobody but the user may write it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import jax

MOST_BYTES = 2**30
WORTH_SECONDS = 0.3  # what compiles faster is not kept


def keep_in(folder: Path) -> None:
    """Keep what is compiled from now on in `folder`, if it can be made; for the whole process."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_SECONDS)


def prune(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Remove what was written first, until no more than `most_bytes` are left."""
    found: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another worker of this user may be at it too
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
    excess = sum(size for _, size, _ in found) - most_bytes
    for _, size, path in sorted(found):
        if excess <= 0:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        excess -= size

"""A worker's folder while the worker runs: nobody takes its identity from under it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from farflung.errors import IdentityError

HELD_FILE = "running"


def hold(folder: Path) -> None:
    """Say that a worker runs on `folder`, until this process ends; not where nothing can be written there."""
    import fcntl

    with suppress(OSError):
        descriptor = os.open(folder / HELD_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # several at once are the broker's to judge; the last is told
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())


def require_unheld(folder: Path) -> None:
    """IdentityError where a worker runs on `folder`, or where one may run whom nobody here can see."""
    import fcntl

    try:
        descriptor = os.open(folder / HELD_FILE, os.O_RDWR)
    except FileNotFoundError:
        return
    except OSError as error:
        raise IdentityError(
            f"whether a worker runs with the identity in {folder}, which this token would replace, cannot be"
            f" seen ({HELD_FILE}: {error.strerror}): give this one a folder of its own with --folder"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
        raise IdentityError(
            f"a worker (process {holder}) runs with the identity in {folder}, which this token would replace:"
            " give this one a folder of its own with --folder"
        ) from None
    except OSError:
        return  # nothing can be held on this file system
    finally:
        os.close(descriptor)

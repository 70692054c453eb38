"""Folders of identities: where a user's are by default, and the lock of a running worker on its own."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from farflung.errors import IdentityError

HELD_FILE = "running"


def hold_folder(folder: Path) -> None:
    """Lock `folder` for a running worker until this process ends; does nothing if the folder is read-only."""
    import fcntl

    with suppress(OSError):
        descriptor = os.open(folder / HELD_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # shared: the broker refuses the second of two workers
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())


def require_free_folder(folder: Path) -> None:
    """Raise IdentityError if a worker runs on `folder`, or may run there without this process seeing it."""
    import fcntl

    try:
        descriptor = os.open(folder / HELD_FILE, os.O_RDWR)
    except FileNotFoundError:
        return
    except OSError as error:
        raise IdentityError(
            f"this token would replace the identity in {folder}, and farflung cannot see whether a worker"
            f" uses it ({HELD_FILE}: {error.strerror}): choose another folder with --folder"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
        raise IdentityError(
            f"this token would replace the identity in {folder}, which a running worker (process {holder})"
            " uses: choose another folder with --folder"
        ) from None
    except OSError:
        return  # this file system has no locks
    finally:
        os.close(descriptor)


def home_folder() -> Path:
    """The folder that contains all identities of this user."""
    return Path(os.environ.get("FARFLUNG_HOME") or Path.home() / ".farflung").expanduser()


def folder_of(role: str, given: Path | None) -> Path:
    """`given`, or the default folder of a role (broker, worker, submitter or viewer)."""
    return home_folder() / role if given is None else given.expanduser()

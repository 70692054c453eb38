"""The lock on a broker's folder, which one broker at a time holds."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from socket import gethostname

from farflung.broker.storage.contract import StoreOwned
from farflung.errors import StoreError

LOCK_FILE = "broker.lock"


def lock_folder(folder: Path, sole: bool) -> int | None:
    """Make a broker's folder if it is missing, and, for its owner, lock it until the descriptor is closed.

    Raises
    ------
    StoreOwned
        Another broker holds the lock.
    StoreError
        The folder cannot be made or written to.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _locked(folder) if sole else None
    except OSError as error:
        raise StoreError(
            f"{folder} cannot hold a broker's store ({error.strerror}): choose another --folder"
        ) from None


def process_words() -> str:
    """This process, as messages on other machines name it."""
    return f"process {os.getpid()} on {gethostname()}"


def _locked(folder: Path) -> int:
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StoreOwned(
            f"another broker (process {holder}) runs on {folder}", "stop it, or choose another --folder"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor

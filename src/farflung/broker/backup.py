"""Back up a broker into one file, and make a broker's folder from it again.

The file holds the store and the certificate authority with its key: all that cannot be made again. Who
reads it can impersonate every member of the fleet.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import msgspec

from farflung.broker.journal import Journal
from farflung.broker.security.authority import AUTHORITY_KEY_FILE, Authority
from farflung.broker.storage.copies import add_files, is_backup, take_files
from farflung.broker.storage.store import STORE_FILE, Store
from farflung.errors import FarflungError, StoreError
from farflung.files import make_folder, sync, write_atomically
from farflung.transport.security.identity import AUTHORITY_FILE

_MODES = {AUTHORITY_FILE: 0o644, AUTHORITY_KEY_FILE: 0o600}


class Contents(msgspec.Struct, frozen=True):
    """What a backup holds: how many workers the broker knows, how many jobs it has had, tokens and bytes."""

    workers: int
    jobs: int
    tokens: int
    bytes: int


def back_up(folder: Path, file: Path) -> Contents:
    """Write a backup of the broker of `folder`, which may be running, to `file`, for its owner only.

    An older backup at `file` is replaced at once or not at all.

    Raises
    ------
    StoreError
        The folder has no broker, its store is damaged, the disk is full, or `file` is something else.
    IdentityError
        The authority's key is missing, or is not its certificate's.
    """
    if not (folder / STORE_FILE).exists():
        raise StoreError(f"{folder} has no broker to back up: run this with the broker's --folder")
    _require_replaceable(file)
    try:
        with (
            Store(folder, sole=False) as store,
            tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as name,
        ):
            copy = Path(name) / STORE_FILE
            Authority.open(folder, store)
            files = {name: (folder / name).read_bytes() for name in _MODES}
            store.copy_to(copy)
            found = _checked(copy.parent)
            add_files(copy, files)
            copy.chmod(0o600)
            sync(copy)
            found = msgspec.structs.replace(found, bytes=copy.stat().st_size)
            copy.replace(file)
        sync(file.parent)
    except OSError as error:
        raise StoreError(
            f"no backup can be written to {file} ({error.strerror}): choose another file"
        ) from None
    return found


def restore(file: Path, folder: Path) -> Contents:
    """Make the broker's folder `folder` from a backup. It is complete once it is there.

    Raises
    ------
    StoreError
        There is such a folder with something in it, or the backup is damaged or none.
    """
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreError(f"{folder} is not empty: move it away, or restore to another --folder")
    try:
        make_folder(folder.parent)
        new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            for name, body in take_files(file, _MODES, new / STORE_FILE).items():
                write_atomically(new / name, body, _MODES[name])
            found = _checked(new, file)
            sync(new)
            new.rename(folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        sync(folder.parent)
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be made ({os.strerror(error.errno or 0)}): choose another --folder"
        ) from None
    return found


def _checked(folder: Path, backup: Path | None = None) -> Contents:
    """Require that a start on the folder would succeed; the authority is checked for a `backup`."""
    try:
        with Store(folder, sole=False) as store:
            if backup is not None:
                Authority.open(folder, store)
            state = Journal(store).state
            store.blobs(state.blobs())
            tokens = len(store.tokens())
    except FarflungError as error:
        if backup is None:
            raise
        why = str(error).replace(f"{folder}{os.sep}", "")
        raise StoreError(f"no broker can be made of {backup}: {why}") from None
    return Contents(len(state.workers), state.submitted, tokens, (folder / STORE_FILE).stat().st_size)


def _require_replaceable(file: Path) -> None:
    try:
        if file.exists() and not (file.is_file() and is_backup(file)):
            raise StoreError(f"{file} is there and is not a backup of a broker: choose another file")
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({error.strerror}): choose another file") from None

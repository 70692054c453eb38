"""Back up a broker into one file, and make a broker's folder from it again.

The file holds the store and the certificate authority, with its key unless that is kept apart: all that
cannot be made again. Of a store
in a database on a server it holds the address only: to take the broker over on another machine you need
no more, and such a database has backups of its own. Who reads the file can impersonate every member of the
fleet.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from farflung.broker.journal import Journal
from farflung.broker.security.authority import open_certificate
from farflung.broker.security.authority_key import (
    AUTHORITY_KEY_FILE,
    IN_FOLDER,
    KeySource,
    is_encrypted,
    read_certificate,
)
from farflung.broker.security.rotation import CROSSED_FILE
from farflung.broker.storage.copies import add_files, is_backup, take_files
from farflung.broker.storage.opening import ADDRESS_FILE, has_store, open_store, server_name, store_address
from farflung.broker.storage.sql import SqlStore
from farflung.broker.storage.store import STORE_FILE, Store
from farflung.errors import FarflungError, StoreError
from farflung.files import make_folder, sync, write_atomically
from farflung.transport.security.identity import AUTHORITY_FILE
from farflung.transport.timeouts import Timeouts

_MODES = {AUTHORITY_FILE: 0o644, AUTHORITY_KEY_FILE: 0o600}


class Contents(msgspec.Struct, frozen=True):
    """What a backup holds: how many workers the broker knows, how many jobs it has had, tokens and bytes.

    `store` is the database that holds all but the bytes, if the backup does not; then the numbers are None
    where it was not asked. The authority's key is in it `plain` or `encrypted`, or kept `apart` from it.
    """

    workers: int | None
    jobs: int | None
    tokens: int | None
    bytes: int
    store: str | None = None
    key: Literal["plain", "encrypted", "apart"] = "plain"


def back_up(folder: Path, file: Path, source: KeySource = IN_FOLDER) -> Contents:
    """Write a backup of the broker of `folder`, which may be running, to `file`, for its owner only.

    An older backup at `file` is replaced at once or not at all. A key that `source` says is kept apart from
    the folder is not in the backup.

    Raises
    ------
    StoreError
        The folder has no broker, its store is damaged, the disk is full, or `file` is something else.
    IdentityError
        The authority's key is missing, or is not its certificate's.
    """
    if not has_store(folder):
        raise StoreError(f"{folder} has no broker to back up: run this with the broker's --folder")
    _require_replaceable(file)
    try:
        with (
            open_store(folder, Timeouts(), sole=False) as store,
            tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as name,
        ):
            copy = Path(name) / STORE_FILE
            open_certificate(folder, store, time.time(), source)
            files = {AUTHORITY_FILE: (folder / AUTHORITY_FILE).read_bytes(), AUTHORITY_KEY_FILE: b""}
            if (folder / CROSSED_FILE).exists():
                files[CROSSED_FILE] = (folder / CROSSED_FILE).read_bytes()
            if source.file is None:
                files[AUTHORITY_KEY_FILE] = (folder / AUTHORITY_KEY_FILE).read_bytes()
            if isinstance(store, Store):
                store.copy_to(copy)
                found = _checked(copy.parent)
            else:
                files[ADDRESS_FILE] = (folder / ADDRESS_FILE).read_bytes()
                found = msgspec.structs.replace(_counted(store), store=store.name)
            add_files(copy, files)
            copy.chmod(0o600)
            sync(copy)
            key = _key_in(files)
            found = msgspec.structs.replace(found, bytes=copy.stat().st_size, key=key)
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
            files = take_files(file, _MODES, new / STORE_FILE, [ADDRESS_FILE, CROSSED_FILE])
            for name, body in files.items():
                if body or name == CROSSED_FILE:  # but the place of a key that is kept apart
                    write_atomically(new / name, body, _MODES.get(name, 0o600))
            key = _key_in(files)
            found = (
                _handed_over(new, file, key != "apart")
                if ADDRESS_FILE in files
                else _checked(new, file, key != "apart")
            )
            found = msgspec.structs.replace(found, key=key)
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


def _key_in(files: Mapping[str, bytes]) -> Literal["plain", "encrypted", "apart"]:
    key = files[AUTHORITY_KEY_FILE]
    if not key:
        return "apart"
    return "encrypted" if is_encrypted(key) else "plain"


def _checked(folder: Path, backup: Path | None = None, has_key: bool = True) -> Contents:
    """Require that a start on the folder would succeed; the authority is checked for a `backup`."""
    try:
        with Store(folder, sole=False) as store:
            if backup is not None:
                open_certificate(folder, store, time.time(), needs_key=has_key)
            found = _counted(store)
    except FarflungError as error:
        if backup is None:
            raise
        raise _useless(backup, folder, error) from None
    return msgspec.structs.replace(found, bytes=(folder / STORE_FILE).stat().st_size)


def _handed_over(folder: Path, backup: Path, has_key: bool) -> Contents:
    """Require all that a start on the folder needs but the database, which may be out of reach for now."""
    (folder / STORE_FILE).unlink()
    try:
        certificate = read_certificate(folder)
        if has_key:
            IN_FOLDER.check(folder, certificate)
        name = server_name(store_address(folder) or "")
    except FarflungError as error:
        raise _useless(backup, folder, error) from None
    return Contents(None, None, None, backup.stat().st_size, name)


def _counted(store: SqlStore) -> Contents:
    """Read all that a start on the store would read."""
    state = Journal(store).state
    store.blobs(state.blobs())
    return Contents(len(state.workers), state.submitted, len(store.tokens()), 0)


def _useless(backup: Path, folder: Path, error: FarflungError) -> StoreError:
    why = str(error).replace(f"{folder}{os.sep}", "")
    return StoreError(f"no broker can be made of {backup}: {why}")


def _require_replaceable(file: Path) -> None:
    try:
        if file.exists() and not (file.is_file() and is_backup(file)):
            raise StoreError(f"{file} is there and is not a backup of a broker: choose another file")
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({error.strerror}): choose another file") from None

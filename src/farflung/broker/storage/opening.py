"""Open the store of a broker's folder: the SQLite file in it, or the database whose address it holds.

A folder holds that address in the file `store`, from the first start with `--store` on. It may hold the
database's password, so only its owner may read it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from farflung.broker.storage.contract import StoreAway, StoreOwned
from farflung.broker.storage.sql import SqlStore
from farflung.broker.storage.store import STORE_FILE, Store
from farflung.errors import StoreError
from farflung.files import write_atomically
from farflung.transport.timeouts import Timeouts

ADDRESS_FILE = "store"
_MOST_BYTES = 10_000
_log = logging.getLogger("farflung.broker")


def open_store(folder: Path, timeouts: Timeouts, address: str | None = None, sole: bool = True) -> SqlStore:
    """Open the store of a broker's folder, as its owner if `sole`.

    An owner's `address` (postgresql://...) is remembered in the folder once it could be opened.

    Raises
    ------
    StoreOwned
        Another broker owns it.
    StoreAway
        Its database cannot be reached.
    StoreError
        It is damaged, the address is none, or the folder has a store of its own already.
    """
    known = store_address(folder)
    wanted = address or known
    if wanted is None:
        return Store(folder, sole)
    if (folder / STORE_FILE).exists():
        raise StoreError(
            f"{folder} has a broker whose store is a file there ({STORE_FILE}): choose another --folder "
            "for a broker with --store"
        )
    store = _on_server(wanted, folder, sole, timeouts)
    if wanted != known:
        try:
            write_store_address(folder, wanted)
        except StoreError:
            store.close()
            raise
    return store


async def open_as_owner(folder: Path, timeouts: Timeouts, address: str | None, standby: bool) -> SqlStore:
    """The store of a broker's folder, opened as its owner; with `standby` once no other broker owns it.

    Raises as `open_store` does; with `standby` neither StoreOwned nor StoreAway.
    """
    said = ""
    while True:
        try:
            store = await asyncio.to_thread(open_store, folder, timeouts, address)
        except (StoreOwned, StoreAway) as error:
            if not standby:
                raise
            found = error.found if isinstance(error, StoreOwned) else str(error)
            if found != said:
                _log.info("standing by to take over: %s", found)
            said = found
        else:
            if said:
                _log.info("taking over the store %s", store.name)
            return store
        await asyncio.sleep(timeouts.heartbeat_seconds)


def store_address(folder: Path) -> str | None:
    """The address of the database with the store of this folder's broker; None if that is a file in it.

    Raises
    ------
    StoreError
        The file with the address cannot be read.
    """
    path = folder / ADDRESS_FILE
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        found = os.strerror(error.errno or 0) if isinstance(error, OSError) else "it is damaged"
        raise StoreError(f"{path} cannot be read ({found}): start the broker again with --store") from None


def write_store_address(folder: Path, address: str) -> None:
    """Remember in a folder which database has the store of its broker.

    Raises
    ------
    StoreError
        The folder cannot be written to.
    """
    try:
        write_atomically(folder / ADDRESS_FILE, f"{address}\n".encode(), 0o600)
    except OSError as error:
        raise StoreError(
            f"{folder / ADDRESS_FILE} cannot be written ({error.strerror}): free disk space"
        ) from None


def has_store(folder: Path) -> bool:
    """Whether a broker has run on this folder, or a token was made for it."""
    return (folder / STORE_FILE).exists() or (folder / ADDRESS_FILE).exists()


def server_name(address: str) -> str:
    """An address as messages name it, without a password.

    Raises
    ------
    StoreError
        It is none, or the package for such stores is not installed.
    """
    _require_package()
    from farflung.broker.storage.server_address import ServerAddress

    return ServerAddress.parse(address).name


def _on_server(address: str, folder: Path, sole: bool, timeouts: Timeouts) -> SqlStore:
    _require_package()
    from farflung.broker.storage.postgres import PostgresStore

    return PostgresStore(address, folder, sole, timeouts)


def _require_package() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise StoreError(
            "a store on PostgreSQL needs a package that is not installed: pip install 'farflung[postgres]'"
        ) from None

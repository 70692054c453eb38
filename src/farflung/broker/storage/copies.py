"""Copies of a store with other files of the broker in one file, and what they are made of again."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from farflung.errors import StoreError

APPLICATION_ID = 0x6661726C
"""What a backup's header says in the place that SQLite leaves to applications ("farl")."""

_HEADER = b"SQLite format 3\0"
_APPLICATION_ID_AT = 68


def is_backup(file: Path) -> bool:
    """Whether a file says of itself that it is a backup; it may be damaged."""
    with file.open("rb") as opened:
        head = opened.read(_APPLICATION_ID_AT + 4)
    return head.startswith(_HEADER) and head[_APPLICATION_ID_AT:] == APPLICATION_ID.to_bytes(4, "big")


def add_files(copy: Path, files: Mapping[str, bytes]) -> None:
    """Make the copy of a store, or a new file, a backup, which holds `files` as well, on disk."""
    with _readable_errors(copy), closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE files (name TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID")
        connection.executemany("INSERT INTO files (name, body) VALUES (?, ?)", files.items())
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA journal_mode = DELETE")  # so that nothing stands in files beside it


def take_files(
    backup: Path, names: Collection[str], copy: Path, further: Collection[str] = ()
) -> dict[str, bytes]:
    """Make a store of a backup, at `copy`, for its owner only; the files in the backup that have `names`.

    Of `further` names, those that it has, too.

    Raises
    ------
    StoreError
        The file is damaged, or no backup, or lacks one of them.
    """
    with _readable_errors(backup):
        if not is_backup(backup):
            raise _no_backup(backup, "it does not begin like one")
        copy.touch(mode=0o600)
        shutil.copyfile(backup, copy)
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if verdict != "ok":
                raise _no_backup(backup, verdict)
            files: dict[str, bytes] = dict(connection.execute("SELECT name, body FROM files").fetchall())
            if missing := [name for name in names if not isinstance(files.get(name), bytes)]:
                raise _no_backup(backup, f"it lacks {missing[0]}")
            connection.execute("DROP TABLE files")
            connection.execute("PRAGMA application_id = 0")
            # Above that of any broker that came after the backup was made, or workers would take it for new.
            at = time.time()
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'owner'").fetchone():
                connection.execute(
                    "INSERT INTO owner (id, epoch, process, at) VALUES (1, ?, 'a backup', ?) "
                    "ON CONFLICT (id) DO UPDATE SET epoch = max(epoch, excluded.epoch)",
                    (int(at), at),
                )
    return {name: files[name] for name in (*names, *further) if name in files}


@contextmanager
def _readable_errors(file: Path) -> Iterator[None]:
    """Convert errors of SQLite and of the disk into StoreErrors of one line."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreError(f"{file} cannot be read or written ({error}): free disk space") from None
    except sqlite3.DatabaseError as error:
        raise _no_backup(file, str(error)) from None
    except OSError as error:
        raise StoreError(
            f"{file} cannot be read or written ({os.strerror(error.errno or 0)}): choose another file"
        ) from None


def _no_backup(file: Path, found: str) -> StoreError:
    found = " ".join(found.split())  # SQLite may write several lines
    return StoreError(f"{file} is damaged or not a backup of a broker ({found}): use another backup")

"""Open, check and migrate the SQLite file of a store."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from farflung.errors import StoreError

_FIRST = """
CREATE TABLE tokens (
    digest BLOB PRIMARY KEY, role TEXT NOT NULL, uses INTEGER NOT NULL, used INTEGER NOT NULL DEFAULT 0,
    expires_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE certificates (
    id TEXT PRIMARY KEY, role TEXT NOT NULL, key_digest BLOB NOT NULL, token_digest BLOB NOT NULL,
    certificate BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE events (sequence INTEGER PRIMARY KEY, at REAL NOT NULL, body BLOB NOT NULL);
"""
_SECOND = """
CREATE TABLE measurements (
    subject TEXT NOT NULL, object TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (subject, object)) WITHOUT ROWID;
"""
_THIRD = "ALTER TABLE tokens ADD COLUMN made_at REAL;"
_FOURTH = "CREATE TABLE blobs (digest BLOB PRIMARY KEY NOT NULL, body BLOB NOT NULL);"
_FIFTH = """
CREATE TABLE snapshots (
    sequence INTEGER PRIMARY KEY, at REAL NOT NULL, digest BLOB NOT NULL, body BLOB NOT NULL);
"""
_SIXTH = """
CREATE TABLE owner (
    id INTEGER PRIMARY KEY CHECK (id = 1), epoch INTEGER NOT NULL, process TEXT NOT NULL, at REAL NOT NULL);
"""
_SEVENTH = """
ALTER TABLE tokens ADD COLUMN scope TEXT NOT NULL DEFAULT '';
ALTER TABLE certificates ADD COLUMN scope TEXT NOT NULL DEFAULT '';
"""
_SCHEMAS = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH, _SEVENTH)
"""The changes that each schema version made to the one before."""

_SCHEMA_VERSION = len(_SCHEMAS)
_BUSY_SECONDS = 10.0


def open_database(path: Path) -> sqlite3.Connection:
    """Connect to the store's file, creating it if needed; every commit is on disk when it returns.

    Raises
    ------
    StoreError
        The file is damaged, is another program's, was written by a newer farflung, or cannot be used.
    """
    # One opener at a time: if two switch a file to WAL, SQLite fails at once despite the busy timeout.
    with _alone(path.parent), readable_errors(path):
        _keep_private(path)
        connection = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            _check(connection, path)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            _make_schema(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _keep_private(path: Path) -> None:
    """Let only the owner read the file, also an older one; SQLite gives its helper files the same mode.

    Those that an older version left when it was killed have the mode of then.
    """
    with suppress(OSError):  # SQLite then says what is wrong
        path.touch(mode=0o600, exist_ok=True)
    for file in (path, *(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm"))):
        with suppress(OSError):
            if file.stat().st_mode & 0o077:
                file.chmod(0o600)


@contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Convert SQLite's errors into StoreErrors of one line."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreError(
            f"{path} cannot be used ({error}): free disk space, or stop the process that locks it"
        ) from None
    except sqlite3.DatabaseError as error:
        raise StoreError(_damaged(path, str(error))) from None


def _check(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > _SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer farflung (schema {version}, this one knows up to "
            f"{_SCHEMA_VERSION}): install that version again"
        )
    if version == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise StoreError(_damaged(path, "it holds tables of another program"))
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise StoreError(_damaged(path, verdict))


def _make_schema(connection: sqlite3.Connection) -> None:
    present = connection.execute("PRAGMA user_version").fetchone()[0]
    if present == _SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    for schema in _SCHEMAS[present:]:
        for statement in schema.split(";"):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    connection.execute("COMMIT")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _damaged(path: Path, found: str) -> str:
    found = " ".join(found.split())  # SQLite may write several lines
    return f"{path} is damaged or not a farflung store ({found}): put a copy back, or choose another --folder"

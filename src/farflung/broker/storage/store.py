"""The broker's store in one SQLite file, in the broker's folder.

Every write is on disk when the call returns (WAL, synchronous=FULL). One broker at a time owns a folder;
other processes may add tokens meanwhile.

Events are numbered from 1. A log snapshot stands for all events up to its number; the two newest are kept,
and the events that both cover are deleted.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from farflung.broker.storage.contract import Holder, LogSnapshot, TokenRecord
from farflung.broker.storage.database import open_database, readable_errors
from farflung.broker.storage.ownership import lock_folder, process_words
from farflung.broker.storage.sql import SqlStore
from farflung.errors import StoreError

__all__ = ["STORE_FILE", "Holder", "LogSnapshot", "Store", "TokenRecord"]

STORE_FILE = "broker.sqlite"


class Store(SqlStore):
    """The file `broker.sqlite` in a broker's folder, created if needed: a `BrokerStore`.

    The owner holds a lock on the folder, and the newest epoch in case somebody removes the lock.

    Raises
    ------
    StoreError
        On opening: another broker owns the folder (unless `sole` is False), or the file is damaged, is no
        farflung store, or was written by a newer farflung. Later: the disk is full or fails.
    """

    def __init__(self, folder: Path, sole: bool = True) -> None:
        self._path = folder / STORE_FILE
        super().__init__(str(self._path), "restore a backup, or choose another --folder")
        self._lock = lock_folder(folder, sole)
        try:
            self._connection = open_database(self._path)
        except BaseException:
            self._unlock()
            raise
        if sole:
            self._own()

    def close(self) -> None:
        """Close the file after pending writes of other threads, and unlock the folder."""
        # SQLite crashes the process when a connection is closed under a statement of another thread.
        with self._guard:
            self._connection.close()
        self._unlock()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything inside together or, if it raises, not at all; other writers wait."""
        with self._guard, readable_errors(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._require_owner()
                yield
                self._connection.commit()
            except BaseException:
                self._connection.rollback()
                raise

    def renew(self) -> None:
        """Require that no other broker has taken the folder over."""
        self._require_owner()

    def stop_waiting(self) -> None:
        """Do nothing: a file is never away."""

    def bind(self, authority: bytes | None, replaces: Collection[bytes] = ()) -> None:
        """Do nothing: the authority is in the folder of the file."""

    def copy_to(self, file: Path) -> None:
        """Copy all that is stored now to a new file, for its owner only; writers do not wait for it."""
        with self._guard, readable_errors(file):
            file.touch(mode=0o600, exist_ok=False)
            with closing(sqlite3.connect(file)) as copy:
                self._connection.backup(copy)

    def _own(self) -> None:
        """Raise the epoch, so that earlier owners of the store cannot write."""
        try:
            with self.transaction():
                self._run(
                    "INSERT INTO owner (id, epoch, process, at) VALUES (1, 1, ?, ?) ON CONFLICT (id) "
                    "DO UPDATE SET epoch = epoch + 1, process = excluded.process, at = excluded.at",
                    process_words(),
                    time.time(),
                )
                ((epoch,),) = self._rows("SELECT epoch FROM owner")
        except BaseException:
            self.close()
            raise
        self._epoch = epoch

    def _require_owner(self) -> None:
        if self._epoch is None:
            return
        rows = self._rows("SELECT epoch, process FROM owner")
        epoch, process = rows[0] if rows else (0, "unknown")
        if epoch != self._epoch:
            raise StoreError(
                f"{self._path} was taken over by another broker ({process}), so this one can decide nothing "
                "any more: run one broker on a folder"
            )

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._guard, readable_errors(self._path):
            return self._connection.execute(query, values).fetchall()

    def _run(self, statement: str, *values: object) -> None:
        with self._guard, readable_errors(self._path):
            self._connection.execute(statement, values)

    def _run_each(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        with self._guard, readable_errors(self._path):
            self._connection.executemany(statement, rows)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

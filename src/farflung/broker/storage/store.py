"""The broker's store: its event log, blobs, measurements, tokens and certificates, in one SQLite file.

Every write is on disk when the call returns (WAL, synchronous=FULL). One broker at a time owns a folder;
other processes may add tokens meanwhile.

Events are numbered from 1. A log snapshot stands for all events up to its number; the two newest are kept,
and the events that both cover are deleted.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple
from hashlib import sha256
from pathlib import Path
from socket import gethostname
from types import TracebackType

from farflung.broker.storage.contract import Holder, LogSnapshot, TokenRecord
from farflung.broker.storage.database import open_database, own_folder, readable_errors
from farflung.errors import StoreError

__all__ = ["STORE_FILE", "Holder", "LogSnapshot", "Store", "TokenRecord"]

STORE_FILE = "broker.sqlite"

SNAPSHOTS = 2
"""Log snapshots that are kept: if the newest is damaged, the one before and the events after it count."""

_PAGE_ROWS = 1000
_TOKEN = "digest, role, uses, used, expires_at, made_at"

_log = logging.getLogger("farflung.broker")


class Store:
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
        self._guard = threading.RLock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = own_folder(folder) if sole else None
        except OSError as error:
            raise StoreError(
                f"{folder} cannot hold a broker's store ({error.strerror}): choose another --folder"
            ) from None
        self._epoch: int | None = None
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

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def append(
        self,
        events: Sequence[bytes],
        blobs: Mapping[bytes, bytes] = {},
        unneeded: Iterable[bytes] = (),
        snapshot: bytes | None = None,
    ) -> None:
        """Add events to the log and blobs by their SHA-256, and delete the `unneeded` blobs, all or nothing.

        A blob that is there already stays, and one that is not there need not be deleted. `snapshot` stands
        for all events up to and with these; with it go the events that older snapshots cover as well.
        """
        if self._epoch is None:
            raise StoreError(f"{self._path} is not open as its owner: only a broker appends to its log")
        now = time.time()
        with self.transaction():
            self._connection.executemany(
                "INSERT OR IGNORE INTO blobs (digest, body) VALUES (?, ?)", blobs.items()
            )
            last = self._last()
            self._connection.executemany(
                "INSERT INTO events (sequence, at, body) VALUES (?, ?, ?)",
                [(number, now, event) for number, event in enumerate(events, last + 1)],
            )
            self._connection.executemany(
                "DELETE FROM blobs WHERE digest = ?", [(digest,) for digest in unneeded]
            )
            if snapshot is not None:
                self._keep(LogSnapshot(last + len(events), snapshot), now)

    def blobs(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """The blobs with these digests.

        Raises
        ------
        StoreError
            One of them is not there, or its bytes have changed.
        """
        found = {}
        for digest in digests:
            rows = self._rows("SELECT body FROM blobs WHERE digest = ?", digest)
            if not rows or sha256(rows[0][0]).digest() != digest:
                state = "is damaged" if rows else "is missing"
                raise StoreError(f"{self._path}: blob {digest.hex()} {state}: put a copy of the folder back")
            found[digest] = rows[0][0]
        return found

    def snapshot(self) -> LogSnapshot | None:
        """The newest log snapshot that is not damaged; None if there is none."""
        for (sequence,) in self._rows("SELECT sequence FROM snapshots ORDER BY sequence DESC"):
            if found := self._read_snapshot(sequence):
                return found
            _log.warning("%s: the log snapshot at event %d is damaged", self._path, sequence)
        return None

    def events(self, after: int = 0) -> Iterator[bytes]:
        """All events with a number above `after`, in the order in which they were appended.

        Raises
        ------
        StoreError
            Some of them are not there any more.
        """
        self._require_events(after)
        while rows := self._rows(
            "SELECT sequence, body FROM events WHERE sequence > ? ORDER BY sequence LIMIT ?",
            after,
            _PAGE_ROWS,
        ):
            after = rows[-1][0]
            for _, body in rows:
                yield body

    def copy_to(self, file: Path) -> None:
        """Copy all that is stored now to a new file, for its owner only; writers do not wait for it."""
        with self._guard, readable_errors(file):
            file.touch(mode=0o600, exist_ok=False)
            with closing(sqlite3.connect(file)) as copy:
                self._connection.backup(copy)

    def write_measurements(self, rows: Sequence[tuple[str, str, bytes]]) -> None:
        """Store measurements of (subject, object), replacing older ones."""
        with self.transaction():
            self._connection.executemany(
                "INSERT OR REPLACE INTO measurements (subject, object, body) VALUES (?, ?, ?)", rows
            )

    def forget_measurements(self, worker: str) -> None:
        """Delete all measurements of a worker."""
        with self.transaction():
            self._connection.execute(
                "DELETE FROM measurements WHERE subject = ? OR object = ?", (worker, worker)
            )

    def measurements(self) -> list[bytes]:
        """All stored measurements."""
        return [body for (body,) in self._rows("SELECT body FROM measurements")]

    def add_token(self, token: TokenRecord) -> None:
        """Store a token."""
        with self.transaction():
            self._connection.execute(
                f"INSERT INTO tokens ({_TOKEN}) VALUES (?, ?, ?, ?, ?, ?)", astuple(token)
            )

    def token(self, digest: bytes) -> TokenRecord | None:
        """The token with this digest; None if there is none."""
        rows = self._rows(f"SELECT {_TOKEN} FROM tokens WHERE digest = ?", digest)
        return TokenRecord(*rows[0]) if rows else None

    def tokens(self) -> list[TokenRecord]:
        """All tokens that were not revoked, those that expire first in front."""
        return [
            TokenRecord(*row)
            for row in self._rows(f"SELECT {_TOKEN} FROM tokens ORDER BY expires_at, digest")
        ]

    def drop_token(self, digest: bytes) -> None:
        """Delete a token: no holder can join with it any more."""
        with self.transaction():
            self._connection.execute("DELETE FROM tokens WHERE digest = ?", (digest,))

    def spend(self, digest: bytes) -> None:
        """Count one more use of a token; call it in the transaction that writes the holder."""
        with self._guard, readable_errors(self._path):
            self._connection.execute("UPDATE tokens SET used = used + 1 WHERE digest = ?", (digest,))

    def holder(self, id: str) -> Holder | None:
        """The holder of this id; None if there is none."""
        columns = "id, role, key_digest, token_digest, certificate"
        rows = self._rows(f"SELECT {columns} FROM certificates WHERE id = ?", id)
        return Holder(*rows[0]) if rows else None

    def joined_with(self, token_digest: bytes) -> list[str]:
        """The ids that joined with a token."""
        rows = self._rows("SELECT id FROM certificates WHERE token_digest = ? ORDER BY id", token_digest)
        return [id for (id,) in rows]

    def write_holder(self, holder: Holder) -> None:
        """Store the holder of an id and its newest certificate."""
        with self._guard, readable_errors(self._path):
            self._connection.execute(
                "INSERT OR REPLACE INTO certificates (id, role, key_digest, token_digest, certificate) "
                "VALUES (?, ?, ?, ?, ?)",
                (holder.id, holder.role, holder.key_digest, holder.token_digest, holder.certificate),
            )

    def _own(self) -> None:
        """Raise the epoch, so that earlier owners of the store cannot write."""
        try:
            with self.transaction():
                self._connection.execute(
                    "INSERT INTO owner (id, epoch, process, at) VALUES (1, 1, ?, ?) ON CONFLICT (id) "
                    "DO UPDATE SET epoch = epoch + 1, process = excluded.process, at = excluded.at",
                    (f"process {os.getpid()} on {gethostname()}", time.time()),
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

    def _last(self) -> int:
        """The number of the newest event that was ever appended."""
        ((last,),) = self._rows(
            "SELECT max((SELECT ifnull(max(sequence), 0) FROM events), "
            "(SELECT ifnull(max(sequence), 0) FROM snapshots))"
        )
        return int(last)

    def _require_events(self, after: int) -> None:
        with self._guard:  # so that no event is appended between the two
            ((count,),) = self._rows("SELECT count(*) FROM events WHERE sequence > ?", after)
            missing = self._last() - after - count
        if missing:
            raise StoreError(
                f"{self._path} is damaged ({missing} events after event {after} are missing from its log, "
                "and no whole log snapshot covers them): restore a backup, or choose another --folder"
            )

    def _keep(self, snapshot: LogSnapshot, now: float) -> None:
        """Write a snapshot, and delete what no longer counts: older ones, and the events that both cover."""
        self._connection.execute(
            "INSERT OR REPLACE INTO snapshots (sequence, at, digest, body) VALUES (?, ?, ?, ?)",
            (snapshot.sequence, now, _digest(snapshot), snapshot.body),
        )
        kept: list[int] = []
        for (sequence,) in self._rows("SELECT sequence FROM snapshots ORDER BY sequence DESC"):
            if len(kept) < SNAPSHOTS and self._read_snapshot(sequence):
                kept.append(sequence)
            else:
                self._connection.execute("DELETE FROM snapshots WHERE sequence = ?", (sequence,))
        if len(kept) == SNAPSHOTS:
            self._connection.execute("DELETE FROM events WHERE sequence <= ?", (kept[-1],))

    def _read_snapshot(self, sequence: int) -> LogSnapshot | None:
        """The snapshot at an event; None if it is damaged."""
        ((digest, body),) = self._rows("SELECT digest, body FROM snapshots WHERE sequence = ?", sequence)
        found = LogSnapshot(sequence, body)
        return found if _digest(found) == digest else None

    def _rows(self, query: str, *values: object) -> list[tuple]:
        with self._guard, readable_errors(self._path):
            return self._connection.execute(query, values).fetchall()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _digest(snapshot: LogSnapshot) -> bytes:
    return sha256(snapshot.sequence.to_bytes(8, "big") + snapshot.body).digest()

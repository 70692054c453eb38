"""What stores on SQL databases have in common: the statements, and what they mean.

Statements are written so that SQLite and PostgreSQL both take them, with `?` for a value.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from hashlib import sha256
from types import TracebackType
from typing import Any, Self

from farflung.broker.storage.contract import Holder, LogSnapshot, TokenRecord
from farflung.errors import StoreError

SNAPSHOTS = 2
"""Log snapshots that are kept: if the newest is damaged, the one before and the events after it count."""

_PAGE_ROWS = 1000
_TOKEN = "digest, role, uses, used, expires_at, made_at, scope"
_HOLDER = "id, role, key_digest, token_digest, certificate, scope"

_log = logging.getLogger("farflung.broker")


@dataclass(frozen=True)
class Addition:
    """What one call of `append` writes."""

    events: Sequence[bytes]
    blobs: Mapping[bytes, bytes]
    unneeded: Sequence[bytes]
    snapshot: bytes | None


class SqlStore(ABC):
    """A `BrokerStore` but for the database itself, which a subclass opens, locks and owns.

    `name` stands for the store in messages, `cure` says there how to get a whole one again. `_epoch` is None
    unless the store is open as its owner.
    """

    def __init__(self, name: str, cure: str) -> None:
        self.name = name
        self._cure = cure
        self._guard = threading.RLock()
        self._epoch: int | None = None

    @property
    def epoch(self) -> int:
        """The owner's epoch; 0 beside the owner."""
        return self._epoch or 0

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Write everything inside together or, if it raises, not at all; other writers wait."""

    @abstractmethod
    def renew(self) -> None:
        """Say that the owner lives."""

    @abstractmethod
    def stop_waiting(self) -> None:
        """Let calls that wait for a database fail now, and later ones not wait."""

    @abstractmethod
    def bind(self, authority: bytes | None, replaces: Collection[bytes] = ()) -> None:
        """Tie the store to the authority with this fingerprint; None: require that it has none yet."""

    @abstractmethod
    def close(self) -> None:
        """Close the store after pending writes of other threads."""

    @abstractmethod
    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows that a query finds."""

    @abstractmethod
    def _run(self, statement: str, *values: object) -> None:
        """Run a statement inside a transaction."""

    @abstractmethod
    def _run_each(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement once for each row of values, inside a transaction."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
            raise StoreError(f"{self.name} is not open as its owner: only a broker appends to its log")
        self._append(Addition(events, blobs, list(unneeded), snapshot))

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
                raise StoreError(f"{self.name}: blob {digest.hex()} {state}: {self._cure}")
            found[digest] = rows[0][0]
        return found

    def snapshot(self) -> LogSnapshot | None:
        """The newest log snapshot that is not damaged; None if there is none."""
        for (sequence,) in self._rows("SELECT sequence FROM snapshots ORDER BY sequence DESC"):
            if found := self._read_snapshot(sequence):
                return found
            _log.warning("%s: the log snapshot at event %d is damaged", self.name, sequence)
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

    def write_measurements(self, rows: Sequence[tuple[str, str, bytes]]) -> None:
        """Store measurements of (subject, object), replacing older ones."""
        self._write(
            "INSERT INTO measurements (subject, object, body) VALUES (?, ?, ?) "
            "ON CONFLICT (subject, object) DO UPDATE SET body = excluded.body",
            rows,
        )

    def forget_measurements(self, worker: str) -> None:
        """Delete all measurements of a worker."""
        self._write("DELETE FROM measurements WHERE subject = ? OR object = ?", [(worker, worker)])

    def measurements(self) -> list[bytes]:
        """All stored measurements."""
        return [body for (body,) in self._rows("SELECT body FROM measurements")]

    def add_token(self, token: TokenRecord) -> None:
        """Store a token."""
        self._write(
            f"INSERT INTO tokens ({_TOKEN}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO NOTHING",
            [astuple(token)],
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
        self._write("DELETE FROM tokens WHERE digest = ?", [(digest,)])

    def spend(self, digest: bytes) -> None:
        """Count one more use of a token; call it in the transaction that writes the holder."""
        self._run("UPDATE tokens SET used = used + 1 WHERE digest = ?", digest)

    def holder(self, id: str) -> Holder | None:
        """The holder of this id; None if there is none."""
        rows = self._rows(f"SELECT {_HOLDER} FROM certificates WHERE id = ?", id)
        return Holder(*rows[0]) if rows else None

    def holders(self) -> list[Holder]:
        """The holders of all ids, by id."""
        return [Holder(*row) for row in self._rows(f"SELECT {_HOLDER} FROM certificates ORDER BY id")]

    def joined_with(self, token_digest: bytes) -> list[str]:
        """The ids that joined with a token."""
        rows = self._rows("SELECT id FROM certificates WHERE token_digest = ? ORDER BY id", token_digest)
        return [id for (id,) in rows]

    def write_holder(self, holder: Holder) -> None:
        """Store the holder of an id and its newest certificate."""
        self._run(
            f"INSERT INTO certificates ({_HOLDER}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "role = excluded.role, key_digest = excluded.key_digest, token_digest = excluded.token_digest, "
            "certificate = excluded.certificate, scope = excluded.scope",
            *astuple(holder),
        )

    def _write(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement once for each row of values, in a transaction of its own."""
        with self.transaction():
            self._run_each(statement, rows)

    def _append(self, addition: Addition) -> None:
        """Write an addition in a transaction of its own."""
        with self.transaction():
            self._write_addition(addition, self._last())

    def _write_addition(self, addition: Addition, last: int) -> None:
        """Write an addition inside a transaction; `last` is the number of the newest event."""
        now = time.time()
        if addition.blobs:
            self._run_each(
                "INSERT INTO blobs (digest, body) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING",
                addition.blobs.items(),
            )
        self._run_each(
            "INSERT INTO events (sequence, at, body) VALUES (?, ?, ?)",
            [(number, now, event) for number, event in enumerate(addition.events, last + 1)],
        )
        if addition.unneeded:
            self._run_each("DELETE FROM blobs WHERE digest = ?", [(digest,) for digest in addition.unneeded])
        if addition.snapshot is not None:
            self._keep(LogSnapshot(last + len(addition.events), addition.snapshot), now)

    def _last(self) -> int:
        """The number of the newest event that was ever appended."""
        numbers = self._rows("SELECT max(sequence) FROM events UNION ALL SELECT max(sequence) FROM snapshots")
        return max(number or 0 for (number,) in numbers)

    def _require_events(self, after: int) -> None:
        with self._guard:  # so that no event is appended between the two
            ((count,),) = self._rows("SELECT count(*) FROM events WHERE sequence > ?", after)
            missing = self._last() - after - count
        if missing:
            raise StoreError(
                f"{self.name} is damaged ({missing} events after event {after} are missing from its log, "
                f"and no whole log snapshot covers them): {self._cure}"
            )

    def _keep(self, snapshot: LogSnapshot, now: float) -> None:
        """Write a snapshot, and delete what no longer counts: older ones, and the events that both cover."""
        self._run(
            "INSERT INTO snapshots (sequence, at, digest, body) VALUES (?, ?, ?, ?) ON CONFLICT (sequence) "
            "DO UPDATE SET at = excluded.at, digest = excluded.digest, body = excluded.body",
            snapshot.sequence,
            now,
            _digest(snapshot),
            snapshot.body,
        )
        kept: list[int] = []
        for (sequence,) in self._rows("SELECT sequence FROM snapshots ORDER BY sequence DESC"):
            if len(kept) < SNAPSHOTS and self._read_snapshot(sequence):
                kept.append(sequence)
            else:
                self._run("DELETE FROM snapshots WHERE sequence = ?", sequence)
        if len(kept) == SNAPSHOTS:
            self._run("DELETE FROM events WHERE sequence <= ?", kept[-1])

    def _read_snapshot(self, sequence: int) -> LogSnapshot | None:
        """The snapshot at an event; None if it is damaged."""
        ((digest, body),) = self._rows("SELECT digest, body FROM snapshots WHERE sequence = ?", sequence)
        found = LogSnapshot(sequence, body)
        return found if _digest(found) == digest else None


def _digest(snapshot: LogSnapshot) -> bytes:
    return sha256(snapshot.sequence.to_bytes(8, "big") + snapshot.body).digest()

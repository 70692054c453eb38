"""The broker's store in a PostgreSQL database, which a broker on another machine can take over.

The row `owner` says which broker owns the store, until when by the server's clock, and in which epoch. Each
transaction of an owner renews its lease there and requires its epoch, in one statement that also locks the
row. So transactions follow one another, and none of an earlier owner commits after a later one took over.

As only the owner appends, it knows the number of the newest event. If a connection breaks at a commit, the
log shows whether the events are there already, and they are written once.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from socket import gethostname
from typing import Any

from farflung.broker.storage.contract import StoreOwned
from farflung.broker.storage.ownership import lock_folder, process_words
from farflung.broker.storage.postgres_schema import make_schema
from farflung.broker.storage.server_address import ServerAddress
from farflung.broker.storage.server_connection import ServerConnection
from farflung.broker.storage.sql import Addition, SqlStore
from farflung.errors import StoreError
from farflung.transport.timeouts import Timeouts

_DEFAULT = Timeouts()
_FENCE = (
    "UPDATE owner SET expires_at = clock_timestamp() + make_interval(secs => ?) WHERE id = 1 AND epoch = ?"
)

# An owner that waited for a server to start has a lease's time to renew its own.
_IS_LEASED = (
    "SELECT process, at, place, greatest(expires_at, pg_postmaster_start_time() + make_interval(secs => ?)) "
    "> clock_timestamp() FROM owner"
)

# The epoch is the time, or workers would take the broker of a database that was restored for an older one.
_TAKE_OVER = (
    "UPDATE owner SET epoch = greatest(epoch + 1, extract(epoch FROM clock_timestamp())::bigint), "
    "process = ?, place = ?, at = clock_timestamp(), "
    "expires_at = clock_timestamp() + make_interval(secs => ?)"
)


class PostgresStore(SqlStore):
    """A database that `url` names (postgresql://...), whose tables are made if needed: a `BrokerStore`.

    The owner also locks `folder`, which holds the rest of a broker, and may take over at once from an earlier
    broker on the same folder.

    Raises
    ------
    StoreAway
        On opening: the database cannot be reached.
    StoreOwned
        On opening: another broker owns the store, and its lease has not run out.
    StoreError
        On opening: the address is none, or a newer farflung has made the tables. Later: the database refuses,
        is away for too long, or another broker has taken it over.
    """

    def __init__(self, url: str, folder: Path, sole: bool = True, timeouts: Timeouts = _DEFAULT) -> None:
        address = ServerAddress.parse(url)
        super().__init__(address.name, "restore the database from a backup of it")
        self._lease_seconds = timeouts.store_lease_seconds
        self._last_number: int | None = None
        self._lock = lock_folder(folder, sole)
        try:
            self._connection = ServerConnection(address, timeouts, is_patient=sole)
            try:
                make_schema(self._connection, address.name)
                if sole:
                    self._own(folder)
            except BaseException:
                self._connection.close()
                raise
        except BaseException:
            self._unlock()
            raise

    def close(self) -> None:
        """End the lease, and close the connection after pending writes of other threads."""
        self.stop_waiting()
        with self._guard:
            if self._epoch is not None:
                self._end_lease()
            self._connection.close()
        self._unlock()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything inside together or, if it raises, not at all; other writers wait."""
        with self._guard, self._connection.transaction(self._fence):
            yield

    def renew(self) -> None:
        """Renew the lease, as each transaction does."""
        self._write("", [])

    def stop_waiting(self) -> None:
        """Let calls that wait for the database fail now, and later ones not wait."""
        self._connection.stop_waiting()

    def bind(self, authority: bytes | None, replaces: Collection[bytes] = ()) -> None:
        """Tie the store to the authority with this fingerprint; None: require that it has none yet."""
        ((bound,),) = self._rows("SELECT authority FROM owner")
        if bound is None or bound in replaces:
            self._run("UPDATE owner SET authority = ?", authority)
        elif bound != authority:
            raise StoreError(
                f"the store {self.name} belongs to a fleet whose authority is not in this folder: on the "
                "broker's first machine run farflung broker backup FILE, and here farflung broker "
                "restore FILE into a new --folder"
            )

    def _write(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        kept = list(rows)

        def write() -> None:
            with self.transaction():
                self._run_each(statement, kept)

        with self._guard:
            self._connection.retried(write)

    def _append(self, addition: Addition) -> None:
        with self._guard:
            before = self._known_last()
            after = before + len(addition.events)

            def write() -> None:
                with self.transaction():
                    last = self._last()
                    if last == before:
                        self._write_addition(addition, last)
                    elif last != after:
                        raise StoreError(
                            f"{self.name} is damaged (its log ends at event {last}, not at {before}): "
                            + self._cure
                        )

            self._last_number = None  # unknown, if this fails
            self._connection.retried(write)
            self._last_number = after

    def _known_last(self) -> int:
        """The number of the newest event."""
        if self._last_number is None:
            with self.transaction():  # after one of our own that may still be at its commit
                self._last_number = self._last()
        return self._last_number

    def _own(self, folder: Path) -> None:
        """Take the store over, if its owner is this folder's earlier broker or its lease has run out."""
        place = self._place(folder)
        with self._connection.transaction(self._fence):
            process, at, owner, is_leased = self._rows(_IS_LEASED, self._lease_seconds)[0]
            if is_leased and owner not in ("", place):
                raise StoreOwned(
                    f"another broker ({process}, since {_clock(at)}) owns the store {self.name} and is alive",
                    "stop it, or start this one with --standby to take over when it is gone",
                )
            self._run(_TAKE_OVER, process_words(), place, self._lease_seconds)
            ((epoch,),) = self._rows("SELECT epoch FROM owner")
        self._epoch = epoch

    def _place(self, folder: Path) -> str:
        """The folder, as no other one on any machine is called: it tells an earlier broker of this folder.

        The number of the lock's file differs in a copy of the folder.
        """
        assert self._lock is not None
        return f"{gethostname()}:{folder.absolute()}:{os.fstat(self._lock).st_ino}"

    def _fence(self) -> None:
        """Lock the owner's row until the transaction ends, and, as the owner, require the own epoch."""
        if self._epoch is None:
            self._connection.execute("SELECT epoch FROM owner FOR UPDATE")
            return
        if self._connection.execute(_FENCE, (self._lease_seconds, self._epoch)).rowcount:
            return
        process, at = self._connection.execute("SELECT process, at FROM owner").fetchall()[0]
        raise StoreError(
            f"the store {self.name} was taken over by another broker ({process}, at {_clock(at)}), so this "
            "one can decide nothing any more: run one broker on a store"
        )

    def _end_lease(self) -> None:
        try:
            self._connection.execute("UPDATE owner SET place = '' WHERE epoch = ?", (self._epoch,))
        except StoreError:
            pass  # it runs out by itself

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._guard:
            return self._connection.retried(lambda: self._connection.execute(query, values).fetchall())

    def _run(self, statement: str, *values: object) -> None:
        with self._guard:
            self._connection.execute(statement, values)

    def _run_each(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        with self._guard:
            self._connection.execute_each(statement, rows)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S %Z}".rstrip()

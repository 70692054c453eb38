"""One connection to a PostgreSQL server, which is made again when it breaks."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from farflung.broker.storage.contract import StoreAway
from farflung.broker.storage.server_address import ServerAddress
from farflung.errors import StoreError
from farflung.text import format_seconds
from farflung.transport.timeouts import Timeouts

FIRST_PAUSE_SECONDS = 0.1

_GOING_AWAY = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.IdleInTransactionSessionTimeout,
    errors.ReadOnlySqlTransaction,  # this server has become a standby: dial again to find the primary
)

_log = logging.getLogger("farflung.broker")

_Result = TypeVar("_Result")


class ServerConnection:
    """A connection for one thread at a time; `is_patient` connections wait for a database that is away.

    Raises
    ------
    StoreAway
        On opening: the database cannot be reached, or refuses these credentials. Later: it did not come back
        within the limit, or the connection broke inside a transaction.
    StoreError
        The database refused a statement.
    """

    def __init__(self, address: ServerAddress, timeouts: Timeouts, is_patient: bool) -> None:
        self._address = address
        self._timeouts = timeouts
        self._patience = timeouts.store_patience_seconds if is_patient else 0.0
        self._in_transaction = False
        self._away_since: float | None = None
        self._stopping = threading.Event()
        self._asked_at: float | None = None
        self._connection: psycopg.Connection | None = self._connect()
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._cut_silent, name="farflung-store-watch", daemon=True)
        self._watch.start()

    def execute(self, statement: str, values: Sequence[object] = ()) -> psycopg.Cursor[Any]:
        """Run a statement; the values stand for its `?`."""
        return self._run(lambda connection: connection.execute(_prepared(statement), values or None))

    def execute_each(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement once for each row of values."""
        rows = list(rows)
        if len(rows) == 1:
            self.execute(statement, rows[0])
        elif rows:
            self._run(lambda connection: connection.cursor().executemany(_prepared(statement), rows))

    def retried(self, call: Callable[[], _Result]) -> _Result:
        """The result of `call`, which runs again as a whole if its connection breaks.

        Inside a transaction it runs once.
        """
        if self._in_transaction:
            return call()
        began: float | None = None
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                result = call()
            except StoreAway as error:
                self._drop()
                began = began or time.monotonic()
                self._note_loss(error, began)
                self._stopping.wait(pause)
                pause = min(2 * pause, self._timeouts.redial_seconds)
                continue
            self._note_return()
            return result

    @contextmanager
    def transaction(self, begun: Callable[[], None]) -> Iterator[None]:
        """Run what is inside as one transaction, after `begun`, which runs in it, too."""
        self.retried(lambda: self._begin(begun))
        self._in_transaction = True
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._in_transaction = False

    def stop_waiting(self) -> None:
        """Let a call that waits for the database fail now, and later ones not wait; for any thread."""
        self._stopping.set()

    def close(self) -> None:
        """Close the connection."""
        self._closed.set()
        self._drop()
        self._watch.join()

    def _begin(self, begun: Callable[[], None]) -> None:
        self.execute("BEGIN")
        try:
            begun()
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        with suppress(StoreError):  # a broken connection has rolled back
            self.execute("ROLLBACK")

    def _run(self, call: Callable[[psycopg.Connection], _Result]) -> _Result:
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        self._asked_at = time.monotonic()
        try:
            return call(connection)
        except psycopg.Error as error:
            raise self._converted(error, connection) from None
        finally:
            self._asked_at = None

    def _connect(self) -> psycopg.Connection:
        timeouts = self._timeouts
        try:
            connection = psycopg.connect(
                self._address.url,
                autocommit=True,
                connect_timeout=max(2, round(timeouts.connect_seconds)),
                tcp_user_timeout=round(1000 * timeouts.lease_seconds),
                application_name="farflung",
            )
            connection.execute(
                "SELECT set_config('search_path', 'farflung', false), "
                "set_config('synchronous_commit', 'on', false), "
                # A broker that is frozen or cut off in a transaction must not keep the next one out.
                "set_config('idle_in_transaction_session_timeout', %s, false)",
                [f"{round(1000 * timeouts.store_lease_seconds)}ms"],
            )
        except psycopg.Error as error:
            raise StoreAway(
                f"the store {self._address.name} cannot be reached ({self._address.words(error)}): start the "
                "database, or correct its address, user and password"
            ) from None
        return connection

    def _converted(self, error: psycopg.Error, connection: psycopg.Connection) -> StoreError:
        words = self._address.words(error)
        if connection.closed or isinstance(error, _GOING_AWAY):
            return StoreAway(f"the store {self._address.name} has gone away ({words}): start it again")
        if isinstance(error, errors.InsufficientPrivilege):
            return StoreError(
                f"the store {self._address.name} refuses ({words}): make its user the owner of the database"
            )
        return StoreError(
            f"the store {self._address.name} cannot be used ({words}): see the database's log, then start "
            "the broker again"
        )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _note_loss(self, error: StoreAway, began: float) -> None:
        """Say once that the database is away; raise if it has been for too long."""
        if not self._patience or self._stopping.is_set():
            raise error
        if self._away_since is None:
            self._away_since = time.monotonic()
            limit = format_seconds(self._patience)
            _log.warning("nothing is decided until the database is back, for at most %s: %s", limit, error)
        if time.monotonic() - min(began, self._away_since) >= self._patience:
            limit = format_seconds(self._patience)
            raise StoreAway(f"the database did not come back within {limit}: {error}") from None

    def _note_return(self) -> None:
        if self._away_since is not None:
            away = format_seconds(time.monotonic() - self._away_since)
            self._away_since = None
            _log.info("the store %s is back, after %s", self._address.name, away)

    def _cut_silent(self) -> None:
        """Cut the connection if a statement gets no answer, for example because the server is frozen."""
        while not self._closed.wait(self._timeouts.heartbeat_seconds):
            asked_at, connection = self._asked_at, self._connection
            if asked_at is None or connection is None:
                continue
            if time.monotonic() - asked_at >= self._timeouts.store_answer_seconds:
                with (
                    suppress(OSError, psycopg.Error),
                    socket.socket(fileno=os.dup(connection.fileno())) as line,
                ):
                    line.shutdown(socket.SHUT_RDWR)


def _prepared(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()  # bytes: a statement of ours, and no text of anyone else

"""A real PostgreSQL server for tests, from the distribution's package, on a port of loopback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from tests.support.ports import HOST, held_port

PASSWORD = "kept:secret"
ABSENT = "no PostgreSQL server is installed: apt install postgresql"

_ACCOUNT = "postgres"  # the package makes it; the server does not run as root
_PASSWORD_IN_URL = "kept%3Asecret"


def programs() -> Path | None:
    """The folder of the newest server's programs; None if there is none."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    newest = max(found, key=lambda path: int(path.parent.parent.name), default=None)
    return newest.parent if newest else None


class PostgresServer:
    """A server in a folder; `database` makes a new database and gives its address."""

    def __init__(self, folder: Path, bin: Path, port: int) -> None:
        self._data = folder / "data"
        self._bin = bin
        self._log = folder / "log"
        self._numbers = count()
        self.port = port
        password = folder / "password"
        password.write_text(PASSWORD)
        self._user = _ACCOUNT if os.geteuid() == 0 else None
        if self._user:
            for path in (folder, password):
                shutil.chown(path, self._user)
        options = ["--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C"]
        self._run("initdb", "--username=farflung", f"--pwfile={password}", *options)

    def url(self, database: str, password: str = _PASSWORD_IN_URL, port: int | None = None) -> str:
        """The address of a database, with the password."""
        return f"postgresql://farflung:{password}@{HOST}:{port or self.port}/{database}"

    def database(self) -> str:
        """The address of a new database."""
        name = f"store{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}", "postgres")
        return self.url(name)

    def execute(self, statement: str, database: str) -> list[tuple[object, ...]]:
        """Run a statement as another program in a database, which may be given by its address."""
        url = database if "://" in database else self.url(database)
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = {"port": self.port, "listen_addresses": HOST, "unix_socket_directories": ""}
        settings |= {"fsync": "off", "shared_buffers": "16MB", "max_wal_size": "64MB", "autovacuum": "off"}
        options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        self._run("pg_ctl", "--wait", "--timeout=180", "start", "-o", options, "-l", str(self._log))

    def stop(self) -> None:
        """Stop the server at once, as a crash would."""
        self._run("pg_ctl", "--wait", "stop", "-m", "immediate")

    @contextmanager
    def frozen(self, database: str) -> Iterator[None]:
        """Stand still in all that the server does for a database."""
        rows = self.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'farflung'", database)
        processes = [int(str(pid)) for (pid,) in rows]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._bin / program, "--pgdata", self._data, *arguments]
        nothing = subprocess.DEVNULL
        subprocess.run(command, user=self._user, stdout=nothing, stderr=nothing, check=True)


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A server until the end of the block."""
    bin = programs()
    assert bin is not None, ABSENT
    folder = Path(tempfile.mkdtemp(prefix="farflung-postgres-"))  # not pytest's, which is closed to others
    try:
        with held_port() as port:
            server = PostgresServer(folder, bin, port)
            server.start()
            try:
                yield server
            finally:
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)

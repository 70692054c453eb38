from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.support.ports import held_port
from tests.support.postgres import PASSWORD, PostgresServer

from farflung.broker.storage.contract import StoreAway, StoreOwned, TokenRecord
from farflung.broker.storage.postgres import PostgresStore
from farflung.errors import StoreError
from farflung.transport.timeouts import Timeouts

TOKEN = TokenRecord(b"d" * 32, "worker", uses=2, used=0, expires_at=1e9)
SHORT = Timeouts(lease_seconds=0.4)

pytestmark = pytest.mark.faults


@contextmanager
def in_background(call: Callable[[], None]) -> Iterator[list[Exception]]:
    """Run `call` on a thread; what it raised is in the list when the block is over."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield raised
    finally:
        thread.join()


class CuttingProxy:
    """Between a store and its server; cuts the connection at the next commit, before or after it happens."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut = ""
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._server))
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()
            threading.Thread(target=self._carry_back, args=(far, near), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        while data := _received(near):
            if self.cut and b"COMMIT" in data:
                cut, self.cut = self.cut, ""
                self.cuts += 1
                if cut == "after":
                    near.shutdown(socket.SHUT_RDWR)
                    far.sendall(data)  # and the answer is lost
                    time.sleep(0.1)
                break
            far.sendall(data)
        _end(near, far)

    def _carry_back(self, far: socket.socket, near: socket.socket) -> None:
        while data := _received(far):
            try:
                near.sendall(data)
            except OSError:
                return


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 16)
    except OSError:
        return b""


def _end(*ends: socket.socket) -> None:
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


@pytest.mark.parametrize("cut", ["before", "after"])
def test_an_append_whose_connection_broke_at_the_commit_is_stored_once(
    postgres: PostgresServer, tmp_path: Path, cut: str
) -> None:
    proxy = CuttingProxy(postgres.port)
    name = postgres.database().rpartition("/")[2]
    with closing(proxy), closing(PostgresStore(postgres.url(name, port=proxy.port), tmp_path)) as store:
        store.append([b"one"])
        for number in range(2):
            proxy.cut = cut
            store.append([b"same", b"same"], {}, (), b"both" if number else None)
        proxy.cut = cut
        store.add_token(TOKEN)
        assert list(store.events()) == [b"one", *[b"same"] * 4]
        assert store.tokens() == [TOKEN] and proxy.cuts == 3


def test_writes_wait_for_a_server_that_is_restarted_and_the_log_says_so(
    postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with closing(PostgresStore(postgres.database(), tmp_path, timeouts=SHORT)) as store:
        store.append([b"one"])
        postgres.stop()
        with in_background(lambda: store.append([b"two"])) as raised:
            time.sleep(0.5)
            postgres.start()
        assert raised == [] and list(store.events()) == [b"one", b"two"]
        store.renew()
    away, back = [record.message for record in caplog.records if record.name == "farflung.broker"]
    assert "nothing is decided until the database is back, for at most 4.8 s" in away
    assert "is back, after" in back and PASSWORD not in caplog.text


def test_an_owner_keeps_its_store_over_a_restart_of_the_server(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.database()
    with closing(PostgresStore(url, tmp_path / "a", timeouts=SHORT)) as first:
        postgres.stop()
        time.sleep(SHORT.store_lease_seconds)
        postgres.start()
        with pytest.raises(StoreOwned):
            PostgresStore(url, tmp_path / "b")
        first.append([b"one"])


def test_a_server_that_stays_away_ends_the_wait_in_one_line(postgres: PostgresServer, tmp_path: Path) -> None:
    with closing(PostgresStore(postgres.database(), tmp_path, timeouts=Timeouts(0.05))) as store:
        postgres.stop()
        try:
            with pytest.raises(StoreAway, match=r"did not come back within 600 ms") as caught:
                store.append([b"one"])
            assert "\n" not in str(caught.value) and PASSWORD not in str(caught.value)
        finally:
            postgres.start()
        assert list(store.events()) == []
        store.append([b"one"])
        assert list(store.events()) == [b"one"]


def test_a_broker_that_is_stopped_waits_for_no_database(postgres: PostgresServer, tmp_path: Path) -> None:
    with closing(PostgresStore(postgres.database(), tmp_path)) as store:
        postgres.stop()
        try:
            with in_background(lambda: store.append([b"one"])) as raised:
                time.sleep(0.2)
                store.stop_waiting()
            assert isinstance(raised[0], StoreAway)
        finally:
            postgres.start()


def test_a_server_that_does_not_answer_is_dialled_again(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.database()
    with closing(PostgresStore(url, tmp_path, timeouts=Timeouts(0.1))) as store:
        with postgres.frozen(url):
            store.append([b"one"])
        assert list(store.events()) == [b"one"]


def test_an_owner_that_is_alive_is_named_and_its_lease_runs_out(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.database()
    with closing(PostgresStore(url, tmp_path / "a")) as first:
        words = r"another broker \(process \d+ on .+, since 20.+\) owns the store .+ and is alive: stop it"
        for renew in (first.renew, lambda: first.append([b"one"])):
            postgres.execute("UPDATE farflung.owner SET expires_at = now()", url)
            renew()  # late, but no other broker has taken over
            with pytest.raises(StoreOwned, match=words):
                PostgresStore(url, tmp_path / "b")
        left = "SELECT extract(epoch FROM expires_at - now()) FROM farflung.owner"
        ((seconds,),) = postgres.execute(left, url)
        assert 0 < float(str(seconds)) <= Timeouts().store_lease_seconds
        postgres.execute("UPDATE farflung.owner SET expires_at = now()", url)
        time.sleep(SHORT.store_lease_seconds)  # as the server may have started just now
        with closing(PostgresStore(url, tmp_path / "b", timeouts=SHORT)) as second:
            for write in (first.renew, lambda: first.append([b"late"])):
                with pytest.raises(StoreError, match="was taken over by another broker"):
                    write()
            first.close()
            second.append([b"two"])
            second.renew()
            with pytest.raises(StoreOwned):
                PostgresStore(url, tmp_path / "c")
            assert list(second.events()) == [b"one", b"two"]


def test_a_broker_killed_on_its_folder_starts_there_again_at_once(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.database()
    code = (
        "import os, pathlib, signal, sys\nfrom farflung.broker.storage.postgres import PostgresStore\n"
        "PostgresStore(sys.argv[1], pathlib.Path(sys.argv[2])).append([b'kept'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, url, str(tmp_path / "a")], check=False)
    with pytest.raises(StoreOwned):
        PostgresStore(url, tmp_path / "b")
    with closing(PostgresStore(url, tmp_path / "a")) as store:
        assert list(store.events()) == [b"kept"]


def test_a_broker_frozen_in_a_transaction_does_not_keep_the_next_one_out(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.database()
    frozen = PostgresStore(url, tmp_path / "a", timeouts=SHORT)
    with closing(frozen), pytest.raises(StoreAway, match="gone away"), frozen.transaction():
        time.sleep(2 * SHORT.store_lease_seconds)
        with closing(PostgresStore(url, tmp_path / "b", timeouts=SHORT)) as second:
            second.append([b"one"])
        frozen.spend(TOKEN.digest)


def test_a_store_belongs_to_one_authority(postgres: PostgresServer, tmp_path: Path) -> None:
    with closing(PostgresStore(postgres.database(), tmp_path)) as store:
        for authority in (None, b"a" * 32, b"a" * 32):
            with store.transaction():
                store.bind(authority)
        for other in (None, b"b" * 32):
            with pytest.raises(StoreError, match="authority is not in this folder"), store.transaction():
                store.bind(other)
        with store.transaction():
            store.bind(b"c" * 32, [b"a" * 32])
        with pytest.raises(StoreError, match="authority is not in this folder"), store.transaction():
            store.bind(b"a" * 32)


def test_a_newer_schema_is_refused(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.database()
    PostgresStore(url, tmp_path).close()
    postgres.execute("UPDATE farflung.version SET number = 99", url)
    with pytest.raises(StoreError, match=r"written by a newer farflung \(schema 99"):
        PostgresStore(url, tmp_path)


def test_a_database_of_another_user_is_refused_in_one_line(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.database()
    postgres.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'", url)
    with pytest.raises(StoreError, match=r"permission denied for .*: make its user the owner"):
        PostgresStore(url.replace("farflung:kept%3Asecret", "guest:guest"), tmp_path)


def test_a_server_that_cannot_be_used_is_one_line_without_the_password(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.database()
    with held_port() as free:
        elsewhere = url.replace(f":{postgres.port}", f":{free}")
    reasons = {
        url.replace("kept%3Asecret", "wrong%3Asecret"): "password authentication failed",
        elsewhere: "Connection refused",
        f"{url}absent": "does not exist",
        url.replace("127.0.0.1", "no-such-host.invalid"): "could not|resolve|known",
    }
    for wrong, reason in reasons.items():
        with pytest.raises(StoreAway, match=reason) as caught:
            PostgresStore(wrong, tmp_path)
        assert "\n" not in str(caught.value) and "secret" not in str(caught.value)
        assert "postgresql://farflung@" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://farflung:kept-secret@host/store",
        "postgresql://farflung:kept@secret@host/store",
        "postgresql://farflung:kept/secret@host/store",
        "postgresql://farflung:100%secret@host/store",
        "postgresql://farflung:kept?secret@host/store",
        "postgresql://farflung:kept:secret@host:secret/store",
        "host=a password=secret",
        "secret",
    ],
)
def test_an_address_that_is_none_is_not_repeated(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        PostgresStore(url, tmp_path)
    assert "secret" not in str(caught.value)


def test_a_server_on_a_socket_has_a_name(tmp_path: Path) -> None:
    with pytest.raises(StoreAway, match=r"postgresql://me@/store\?host=/"):
        PostgresStore(f"postgresql://me@/store?host={tmp_path}", tmp_path)

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from farflung.broker.storage.ownership import LOCK_FILE
from farflung.broker.storage.store import STORE_FILE, Store, TokenRecord
from farflung.errors import FarflungError, StoreError

TOKEN = TokenRecord(b"d" * 32, "worker", uses=2, used=0, expires_at=1e9)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def blob(body: bytes) -> dict[bytes, bytes]:
    return {sha256(body).digest(): body}


def test_an_event_and_its_blobs_are_stored_together_or_not_at_all(tmp_path: Path) -> None:
    held, large = blob(b"held"), blob(bytes(100_000))
    with Store(tmp_path) as store:
        store.append([b"kept"], held)
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="full"):
            store.append([bytes(100_000)], blob(b"small"), unneeded=held)
        with pytest.raises(StoreError, match="full"):
            store.append([b"names it"], large, unneeded=held)
        assert list(store.events()) == [b"kept"] and store.blobs(held) == held
        for absent in (blob(b"small"), large):
            with pytest.raises(StoreError, match="missing"):
                store.blobs(absent)


def test_a_blob_whose_bytes_have_changed_is_not_given_out(tmp_path: Path) -> None:
    graph = blob(b"graph")
    with Store(tmp_path) as store:
        store.append([b"submitted"], graph)
        with sqlite3.connect(tmp_path / STORE_FILE) as connection:
            connection.execute("UPDATE blobs SET body = x'00'")
        connection.close()
        with pytest.raises(StoreError, match="is damaged"):
            store.blobs(graph)


def test_a_second_broker_is_refused_and_named_and_a_closed_one_is_not_in_the_way(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(StoreError, match=r"another broker \(process \d+\) runs on"):
        Store(tmp_path)
    Store(tmp_path).close()


def test_a_killed_broker_is_not_in_the_way(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys\nfrom farflung.broker.storage.store import Store\n"
        "Store(pathlib.Path(sys.argv[1])).append([b'kept'])\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert run_python(code, str(tmp_path)).returncode == -9
    with Store(tmp_path) as store:
        assert list(store.events()) == [b"kept"]


def test_another_process_adds_tokens_beside_a_running_broker(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\nfrom farflung.broker.storage.store import Store, TokenRecord\n"
        "Store(pathlib.Path(sys.argv[1]), sole=False).add_token(TokenRecord(b'x', 'viewer', 1, 0, 5.0))"
    )
    with Store(tmp_path) as store:
        store.append([b"running"])
        assert run_python(code, str(tmp_path)).returncode == 0
        assert store.token(b"x") == TokenRecord(b"x", "viewer", 1, 0, 5.0)


def test_many_may_be_first_at_once(tmp_path: Path) -> None:
    failures: list[Exception] = []

    def open_and_write(number: int) -> None:
        try:
            with Store(tmp_path / "new", sole=False) as store:
                store.add_token(TokenRecord(bytes([number]), "viewer", 1, 0, float(number)))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=open_and_write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with Store(tmp_path / "new") as store:
        assert [token.digest for token in store.tokens()] == [bytes([number]) for number in range(8)]


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / STORE_FILE) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="written by a newer farflung"):
        Store(tmp_path)


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / STORE_FILE).write_bytes(b"these are not the pages you are looking for" * 100)
    with pytest.raises(StoreError, match="damaged or not a farflung store"):
        Store(tmp_path)
    assert (tmp_path / STORE_FILE).read_bytes().startswith(b"these are not")


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / STORE_FILE) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(StoreError, match="tables of another program"):
        Store(tmp_path)
    with sqlite3.connect(tmp_path / STORE_FILE) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("bookmarks",)]


def test_a_damaged_page_is_found_on_opening(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append([bytes(3000) for _ in range(200)])
    data = bytearray((tmp_path / STORE_FILE).read_bytes())
    data[3 * 4096 :] = b"\xff" * (len(data) - 3 * 4096)
    (tmp_path / STORE_FILE).write_bytes(data)
    with pytest.raises(StoreError, match="damaged") as caught:
        Store(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_refused_file_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    (tmp_path / STORE_FILE).write_bytes(b"garbage" * 1000)
    for _ in range(2):
        with pytest.raises(FarflungError, match="damaged"):
            Store(tmp_path)
    (tmp_path / STORE_FILE).unlink()
    Store(tmp_path).close()


def test_a_full_disk_is_one_clear_line_and_loses_nothing(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append([b"kept"])
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="full"):
            store.append([bytes(100_000)])
        assert list(store.events()) == [b"kept"]


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "broker"):
        with pytest.raises(StoreError, match="cannot hold a broker's store"):
            Store(folder)


def test_the_folder_is_its_owners_only(tmp_path: Path) -> None:
    Store(tmp_path / "a" / "broker").close()
    assert (tmp_path / "a" / "broker").stat().st_mode & 0o777 == 0o700


def test_the_store_and_authority_load_no_torch_and_no_numpy() -> None:
    code = (
        "import sys, farflung.broker.storage.store, farflung.broker.security.authority\n"
        "print(sorted({'torch', 'numpy', 'networkx'} & set(sys.modules)))"
    )
    assert run_python(code).stdout.strip() == "[]"


def test_closing_waits_for_what_another_thread_is_writing(tmp_path: Path) -> None:
    # Run in a process of its own: what this guards against is a crash of the whole process.
    program = """
import sys, threading, time
from pathlib import Path
from farflung.broker.storage.store import Store
from farflung.errors import StoreError

def write(store):
    try:
        while True:
            store.append([b"x" * 1000] * 200)
    except StoreError:
        pass

for number in range(20):
    store = Store(Path(sys.argv[1]) / str(number))
    thread = threading.Thread(target=write, args=(store,))
    thread.start()
    time.sleep(0.002 + number % 10 * 0.001)
    store.close()
    thread.join()
"""
    finished = run_python(program, str(tmp_path))
    assert finished.returncode == 0, finished.stderr


def test_a_store_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append([b"kept"])
    with sqlite3.connect(tmp_path / STORE_FILE) as connection:
        connection.execute("DROP TABLE owner")
        connection.execute("DROP TABLE snapshots")
        connection.execute("DROP TABLE measurements")
        connection.execute("DROP TABLE blobs")
        connection.execute("ALTER TABLE tokens DROP COLUMN made_at")
        for table in ("tokens", "certificates"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN scope")
        connection.execute(
            "INSERT INTO tokens (digest, role, uses, expires_at) VALUES (x'01', 'viewer', 2, 9)"
        )
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    with Store(tmp_path) as store:
        store.write_measurements([("a", "b", b"1")])
        assert list(store.events()) == [b"kept"] and store.measurements() == [b"1"]
        assert store.tokens() == [TokenRecord(b"\1", "viewer", 2, 0, 9.0, made_at=None)]


def test_a_broker_whose_lock_was_removed_can_write_nothing_once_another_one_runs(tmp_path: Path) -> None:
    with Store(tmp_path) as first:
        first.append([b"kept"])
        (tmp_path / LOCK_FILE).unlink()
        with Store(tmp_path) as second:
            with pytest.raises(StoreError, match=r"taken over by another broker \(process \d+ on .+\)"):
                first.append([b"too late"])
            second.append([b"in time"])
        assert list(first.events()) == [b"kept", b"in time"]


def test_only_its_owner_may_read_the_file_also_if_it_is_older(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add_token(TokenRecord(b"d" * 32, "worker", 1, 0, 1e9))
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("broker.sqlite*")}
    assert set(modes.values()) == {0o600} and "broker.sqlite" in modes
    (tmp_path / "broker.sqlite").chmod(0o644)
    with Store(tmp_path):
        assert (tmp_path / "broker.sqlite").stat().st_mode & 0o777 == 0o600


def test_only_its_owner_may_read_what_a_killed_broker_of_an_older_version_left(tmp_path: Path) -> None:
    left = tmp_path / "left"
    with Store(tmp_path / "live") as store:
        store.add_token(TokenRecord(b"d" * 32, "worker", 1, 0, 1e9))
        shutil.copytree(tmp_path / "live", left)  # as a kill leaves it: with the newest writes in the -wal
    for path in left.iterdir():
        path.chmod(0o644)
    with Store(left, sole=False) as store:
        assert [token.digest for token in store.tokens()] == [b"d" * 32]
        modes = {path.name: path.stat().st_mode & 0o777 for path in left.glob("broker.sqlite*")}
    assert modes == dict.fromkeys(("broker.sqlite", "broker.sqlite-wal", "broker.sqlite-shm"), 0o600)

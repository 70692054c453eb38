from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.broker.storage.store import STORE_FILE, Holder, Store, TokenRecord
from farflung.errors import FarflungError, StoreError

TOKEN = TokenRecord(b"d" * 32, "worker", uses=2, used=0, expires_at=1e9)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


@settings(max_examples=30)
@given(batches=st.lists(st.lists(st.binary(max_size=40), max_size=5), max_size=8))
def test_events_come_back_in_order_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("broker")
    for batch in batches:
        with Store(folder) as store:
            store.append(batch)
    with Store(folder) as store:
        assert list(store.events()) == [event for batch in batches for event in batch]


def test_more_events_than_one_page(tmp_path: Path) -> None:
    events = [str(number).encode() for number in range(2500)]
    with Store(tmp_path) as store:
        store.append(events)
        assert list(store.events()) == events


def blob(body: bytes) -> dict[bytes, bytes]:
    return {sha256(body).digest(): body}


def test_blobs_are_kept_with_the_events_that_name_them_until_they_are_unneeded(tmp_path: Path) -> None:
    graph, program = blob(b"graph"), blob(bytes(100_000))
    with Store(tmp_path) as store:
        store.append([b"submitted"], graph)
        store.append([b"submitted again"], graph)
        store.append([b"planned"], program, unneeded=[b"never stored".ljust(32)])
    with Store(tmp_path) as store:
        assert store.blobs([*graph, *program]) == graph | program
        store.append([b"over"], unneeded=graph)
        assert list(store.events()) == [b"submitted", b"submitted again", b"planned", b"over"]
        assert store.blobs(program) == program
        with pytest.raises(StoreError, match=r"blob [0-9a-f]{64} is missing"):
            store.blobs(graph)


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


def test_tokens_and_holders_come_back(tmp_path: Path) -> None:
    holder = Holder("lab-1", "worker", b"k" * 32, b"d" * 32, b"pem")
    with Store(tmp_path) as store:
        store.add_token(TOKEN)
        store.spend(TOKEN.digest)
        store.write_holder(holder)
    with Store(tmp_path) as store:
        assert store.token(TOKEN.digest) == TokenRecord(b"d" * 32, "worker", 2, 1, 1e9)
        assert store.token(b"other") is None
        assert store.holder("lab-1") == holder
        assert store.holder("lab-2") is None


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add_token(TOKEN)
        with pytest.raises(RuntimeError), store.transaction():
            store.spend(TOKEN.digest)
            raise RuntimeError
        stored = store.token(TOKEN.digest)
        assert stored is not None and stored.used == 0
        store.append([b"the store still works"])


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
                store.append([str(number).encode()])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=open_and_write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with Store(tmp_path / "new") as store:
        assert sorted(store.events()) == [str(number).encode() for number in range(8)]


def test_threads_may_share_a_store(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        threads = [
            threading.Thread(target=store.append, args=([f"{n}a".encode(), f"{n}b".encode()],))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        events = list(store.events())
    assert len(events) == 16
    assert all(first[:-1] == second[:-1] for first, second in zip(events[::2], events[1::2], strict=True))


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


def test_measurements_are_kept_the_newest_of_each_until_their_worker_is_forgotten(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.write_measurements([("a", "b", b"1"), ("b", "c", b"2"), ("a", "/up", b"3")])
        store.write_measurements([("a", "b", b"4")])
    with Store(tmp_path) as store:
        assert sorted(store.measurements()) == [b"2", b"3", b"4"]
        store.forget_measurements("a")
        assert store.measurements() == [b"2"]


def test_a_store_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append([b"kept"])
    with sqlite3.connect(tmp_path / STORE_FILE) as connection:
        connection.execute("DROP TABLE snapshots")
        connection.execute("DROP TABLE measurements")
        connection.execute("DROP TABLE blobs")
        connection.execute("ALTER TABLE tokens DROP COLUMN made_at")
        connection.execute(
            "INSERT INTO tokens (digest, role, uses, expires_at) VALUES (x'01', 'viewer', 2, 9)"
        )
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    with Store(tmp_path) as store:
        store.write_measurements([("a", "b", b"1")])
        assert list(store.events()) == [b"kept"] and store.measurements() == [b"1"]
        assert store.tokens() == [TokenRecord(b"\1", "viewer", 2, 0, 9.0, made_at=None)]

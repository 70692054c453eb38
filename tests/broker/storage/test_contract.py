"""What every `BrokerStore` promises, on each database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.postgres import PostgresServer

from farflung.broker.storage.contract import BrokerStore, Holder, LogSnapshot, TokenRecord
from farflung.broker.storage.ownership import LOCK_FILE
from farflung.broker.storage.postgres import PostgresStore
from farflung.broker.storage.store import Store
from farflung.errors import StoreError

TOKEN = TokenRecord(b"d" * 32, "worker", uses=2, used=0, expires_at=1e9)
LATER = TokenRecord(b"e" * 32, "viewer", uses=1, used=0, expires_at=2e9, made_at=5.0)


class Place(Protocol):
    """Where stores can be made; each number is another store."""

    def open(self, number: int = 0, sole: bool = True) -> BrokerStore:
        """Open a store, as its owner if `sole`."""
        ...

    def take_over(self, number: int = 0) -> BrokerStore:
        """Open a store as its owner although somebody else has it open as such."""
        ...


class SqlitePlace:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, number: int = 0, sole: bool = True) -> BrokerStore:
        return Store(self._folder / str(number), sole)

    def take_over(self, number: int = 0) -> BrokerStore:
        (self._folder / str(number) / LOCK_FILE).unlink()
        return self.open(number)


class PostgresPlace:
    """Each broker has a folder of its own, as on machines of their own."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._folder = folder
        self._server = server
        self._urls: dict[int, str] = {}
        self._folders = count()

    def open(self, number: int = 0, sole: bool = True) -> BrokerStore:
        if number not in self._urls:
            self._urls[number] = self._server.database()
        return PostgresStore(self._urls[number], self._folder / str(next(self._folders)), sole)

    def take_over(self, number: int = 0) -> BrokerStore:
        self._server.execute("UPDATE farflung.owner SET place = ''", self._urls[number])
        return self.open(number)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return SqlitePlace(tmp_path)
    return PostgresPlace(tmp_path, request.getfixturevalue("postgres"))


@pytest.fixture
def store(place: Place) -> Iterator[BrokerStore]:
    with closing(place.open()) as opened:
        yield opened


def blob(body: bytes) -> dict[bytes, bytes]:
    return {sha256(body).digest(): body}


NUMBERS = count()
BATCHES = st.lists(st.tuples(st.lists(st.binary(max_size=40), max_size=5), st.booleans()), max_size=8)


@pytest.mark.cases(1)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=BATCHES)
def test_what_was_appended_comes_back_in_order_whatever_snapshots_cover(
    place: Place, batches: list[tuple[list[bytes], bool]]
) -> None:
    number = next(NUMBERS)
    appended: list[bytes] = []
    covered: list[int] = []
    for events, has_snapshot in batches:
        appended += events
        with closing(place.open(number)) as opened:
            opened.append(events, {}, (), str(len(appended)).encode() if has_snapshot else None)
        if has_snapshot and len(appended) not in covered:
            covered.append(len(appended))
    with closing(place.open(number)) as opened:
        for after in range(covered[-2] if len(covered) > 1 else 0, len(appended) + 1):
            assert list(opened.events(after)) == appended[after:]
        newest = LogSnapshot(covered[-1], str(covered[-1]).encode()) if covered else None
        assert opened.snapshot() == newest
        if len(covered) > 1 and covered[-2]:
            with pytest.raises(StoreError, match="are missing"):
                list(opened.events(covered[-2] - 1))


def test_more_events_than_one_page(store: BrokerStore) -> None:
    events = [str(number).encode() for number in range(2500)]
    store.append(events)
    assert list(store.events()) == events and list(store.events(after=1400)) == events[1400:]


def test_a_snapshot_without_new_events_stands_for_those_before(store: BrokerStore) -> None:
    store.append([b"one", b"two"])
    store.append([], {}, (), b"both")
    assert store.snapshot() == LogSnapshot(2, b"both")
    store.append([], {}, (), b"both again")
    assert store.snapshot() == LogSnapshot(2, b"both again")
    store.append([b"three"])
    assert list(store.events(2)) == [b"three"] and list(store.events()) == [b"one", b"two", b"three"]


def test_blobs_are_kept_with_the_events_that_name_them_until_they_are_unneeded(place: Place) -> None:
    graph, program = blob(b"graph"), blob(bytes(100_000))
    with closing(place.open()) as store:
        store.append([b"submitted"], graph)
        store.append([b"submitted again"], graph)
        store.append([b"planned"], program, unneeded=[b"never stored".ljust(32)])
    with closing(place.open()) as store:
        assert store.blobs([*graph, *program]) == graph | program
        store.append([b"over"], unneeded=graph)
        assert list(store.events()) == [b"submitted", b"submitted again", b"planned", b"over"]
        assert store.blobs(program) == program
        with pytest.raises(StoreError, match=r"blob [0-9a-f]{64} is missing"):
            store.blobs(graph)


def test_tokens_and_holders_come_back(place: Place) -> None:
    holder = Holder("lab-1", "worker", b"k" * 32, b"d" * 32, b"pem")
    with closing(place.open()) as store:
        store.add_token(LATER)
        store.add_token(TOKEN)
        with store.transaction():
            store.spend(TOKEN.digest)
            store.write_holder(holder)
            store.write_holder(Holder("a", "worker", b"l" * 32, b"d" * 32, b"pem"))
    with closing(place.open()) as store:
        spent = TokenRecord(b"d" * 32, "worker", 2, 1, 1e9)
        assert store.token(TOKEN.digest) == spent
        assert store.tokens() == [spent, LATER]
        assert store.token(b"other") is None
        assert store.holder("lab-1") == holder
        assert store.holder("lab-2") is None
        assert store.joined_with(TOKEN.digest) == ["a", "lab-1"]
        store.drop_token(TOKEN.digest)
        assert store.tokens() == [LATER]
        assert store.joined_with(TOKEN.digest) == ["a", "lab-1"]
        assert [one.id for one in store.holders()] == ["a", "lab-1"] and holder in store.holders()


def test_a_failed_transaction_leaves_nothing(store: BrokerStore) -> None:
    store.add_token(TOKEN)
    with pytest.raises(RuntimeError), store.transaction():
        store.spend(TOKEN.digest)
        raise RuntimeError
    stored = store.token(TOKEN.digest)
    assert stored is not None and stored.used == 0
    store.append([b"the store still works"])


def test_threads_may_share_a_store(store: BrokerStore) -> None:
    threads = [
        threading.Thread(target=store.append, args=([f"{n}a".encode(), f"{n}b".encode()],)) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = list(store.events())
    assert len(events) == 16
    assert all(first[:-1] == second[:-1] for first, second in zip(events[::2], events[1::2], strict=True))


def test_measurements_are_kept_the_newest_of_each_until_their_worker_is_forgotten(place: Place) -> None:
    with closing(place.open()) as store:
        store.write_measurements([("a", "b", b"1"), ("b", "c", b"2"), ("a", "/up", b"3")])
        store.write_measurements([("a", "b", b"4")])
    with closing(place.open()) as store:
        assert sorted(store.measurements()) == [b"2", b"3", b"4"]
        store.forget_measurements("a")
        assert store.measurements() == [b"2"]


def test_tokens_are_added_beside_the_owner_and_nothing_is_decided_there(place: Place) -> None:
    with closing(place.open()) as owner, closing(place.open(sole=False)) as beside:
        owner.append([b"one"])
        beside.add_token(TOKEN)
        assert owner.token(TOKEN.digest) == beside.token(TOKEN.digest) == TOKEN
        assert list(beside.events()) == [b"one"]
        with pytest.raises(StoreError, match="not open as its owner"):
            beside.append([b"two"])
        owner.append([b"three"])
        assert list(owner.events()) == [b"one", b"three"]


def test_a_second_owner_is_refused_while_the_first_one_has_the_store_open(place: Place) -> None:
    with closing(place.open()), pytest.raises(StoreError, match="another broker"):
        place.open()
    place.open().close()


WRITES: dict[str, Callable[[BrokerStore], None]] = {
    "append": lambda store: store.append([b"late"]),
    "snapshot": lambda store: store.append([], {}, (), b"late"),
    "measurements": lambda store: store.write_measurements([("a", "b", b"late")]),
    "forget": lambda store: store.forget_measurements("a"),
    "token": lambda store: store.add_token(LATER),
    "revoke": lambda store: store.drop_token(TOKEN.digest),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_an_owner_that_was_replaced_writes_nothing(
    place: Place, write: Callable[[BrokerStore], None]
) -> None:
    with ExitStack() as opened:
        first = opened.enter_context(closing(place.open()))
        first.append([b"one"])
        first.add_token(TOKEN)
        first.write_measurements([("a", "b", b"1")])
        second = opened.enter_context(closing(place.take_over()))
        for _ in range(2):
            with pytest.raises(StoreError, match="was taken over by another broker") as caught:
                write(first)
            assert "\n" not in str(caught.value)
        assert (list(second.events()), second.snapshot()) == ([b"one"], None)
        assert (second.tokens(), second.measurements()) == ([TOKEN], [b"1"])
        second.append([b"two"])
        third = opened.enter_context(closing(place.take_over()))
        with pytest.raises(StoreError, match="was taken over"):
            second.append([b"late"])
        third.append([b"three"])
        assert list(third.events()) == [b"one", b"two", b"three"]
        beside = opened.enter_context(closing(place.open(sole=False)))
        beside.add_token(LATER)
        assert third.tokens() == [TOKEN, LATER]


def test_an_owner_that_comes_back_after_a_clean_end_is_the_owner_again(place: Place) -> None:
    for number in range(3):
        with closing(place.open()) as store:
            store.append([str(number).encode()])
    with closing(place.open()) as store:
        assert list(store.events()) == [b"0", b"1", b"2"]

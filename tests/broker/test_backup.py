from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.broker.scenario import Scenario

from farflung.broker.backup import back_up, restore
from farflung.broker.core import facts
from farflung.broker.core.state import State
from farflung.broker.journal import Journal
from farflung.broker.security.authority import Authority, create_token
from farflung.broker.security.authority_key import AUTHORITY_KEY_FILE
from farflung.broker.storage.store import STORE_FILE, Store
from farflung.errors import FarflungError, IdentityError, StoreError
from farflung.transport.security.certificates import new_key, signing_request
from farflung.transport.security.identity import AUTHORITY_FILE
from farflung.transport.security.join_messages import AskCertificate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a broker with a job that runs, a worker that joined and a token with a use left."""
    story = Scenario("a", "b")
    story.running(2)
    folder = tmp_path / "broker"
    token = create_token(folder, "worker", uses=2)
    with Store(folder) as store:
        request = AskCertificate(token.secret, "a", "worker", signing_request(new_key(), "a", "worker"))
        Authority.open(folder, store).enrol(request)
        log = Journal(store)
        decisions = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
        log.append(decisions, story.state, story.blobs)
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.backup"


def everything(folder: Path) -> tuple[State, object, object, dict[str, bytes], dict[bytes, bytes]]:
    with Store(folder, sole=False) as store:
        state = Journal(store).state
        keys = {name: (folder / name).read_bytes() for name in (AUTHORITY_KEY_FILE, AUTHORITY_FILE)}
        return state, store.tokens(), store.holder("a"), keys, store.blobs(state.blobs())


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_a_restored_broker_knows_all_that_the_other_one_knew(folder: Path, file: Path) -> None:
    before = everything(folder)
    made = back_up(folder, file)
    assert (made.workers, made.jobs, made.tokens, made.bytes) == (2, 1, 1, file.stat().st_size)
    new = file.parent / "deep" / "elsewhere"
    assert restore(file, new).jobs == 1
    assert everything(new) == before == everything(folder)
    assert new.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in new.iterdir()}
    assert modes == {STORE_FILE: 0o600, AUTHORITY_KEY_FILE: 0o600, AUTHORITY_FILE: 0o644}
    assert leftovers(file.parent) == leftovers(new.parent) == []
    with Store(new) as store:  # and takes decisions again
        log = Journal(store)
        log.append([facts.encode(facts.WorkerLost(1.0, "a", "gone"))], log.state)


def test_a_broker_that_runs_is_backed_up_as_it_is_at_one_moment(folder: Path, file: Path) -> None:
    with Store(folder) as store:
        log = Journal(store)
        back_up(folder, file)
        log.append([facts.encode(facts.WorkerLost(1.0, "a", "gone"))], log.state)
        restore(file, file.parent / "new")
        with Store(file.parent / "new", sole=False) as other:
            assert Journal(other).state == log.state
        assert Journal(store).state != log.state


def test_a_backup_is_its_owners_alone_and_one_file(folder: Path, file: Path) -> None:
    back_up(folder, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert (folder / AUTHORITY_KEY_FILE).read_bytes() in file.read_bytes()
    assert [path.name for path in file.parent.iterdir() if path.is_file()] == [file.name]


def test_an_older_backup_is_replaced_and_nothing_else_is(folder: Path, file: Path) -> None:
    file.write_text("my thesis")
    for other in (file, folder / STORE_FILE, folder):
        with pytest.raises(StoreError, match="is not a backup of a broker: choose another file"):
            back_up(folder, other)
    assert file.read_text() == "my thesis"
    file.unlink()
    back_up(folder, file)
    create_token(folder, "viewer")
    assert back_up(folder, file).tokens == 2
    assert restore(file, file.parent / "new").tokens == 2


def test_a_backup_that_fails_leaves_the_older_one(
    folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(folder, file)
    before = file.read_bytes()

    def full(*given: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("farflung.broker.storage.copies.closing", full)
    with pytest.raises(StoreError, match="full"):
        back_up(folder, file)
    assert file.read_bytes() == before and leftovers(file.parent) == []


def test_a_store_that_could_not_be_restored_is_not_backed_up(folder: Path, file: Path) -> None:
    with closing(sqlite3.connect(folder / STORE_FILE)) as connection, connection:
        connection.execute("DELETE FROM events WHERE sequence = 2")
    with pytest.raises(StoreError, match="damaged"):
        back_up(folder, file)
    assert not file.exists()


def test_what_is_no_broker_is_one_clear_line(folder: Path, file: Path) -> None:
    with pytest.raises(StoreError, match="has no broker to back up"):
        back_up(file.parent / "nothing", file)
    assert not (file.parent / "nothing").exists()
    with pytest.raises(StoreError, match="choose another file"):
        back_up(folder, file.parent / "no" / "folder")
    (folder / AUTHORITY_KEY_FILE).unlink()
    with pytest.raises(IdentityError, match="is missing"):
        back_up(folder, file)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9000])


def overwrite(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    file.write_bytes(data)


def change_key(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DELETE FROM files WHERE name = ?", (AUTHORITY_KEY_FILE,))


def change_blob(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE blobs SET body = x'00'")


def other_key(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE files SET body = x'00' WHERE name = ?", (AUTHORITY_KEY_FILE,))


def newer(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA user_version = 99")


def foreign(file: Path) -> None:
    file.unlink()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")


@pytest.mark.parametrize("harm", [cut, overwrite, change_key, change_blob, other_key, newer, foreign])
def test_a_damaged_or_foreign_file_is_one_clear_line_and_makes_no_folder(
    folder: Path, file: Path, harm: object
) -> None:
    back_up(folder, file)
    harm(file)  # type: ignore[operator]
    with pytest.raises(StoreError) as caught:
        restore(file, file.parent / "new")
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)
    assert ".new." not in str(caught.value)  # the folder in which it was tried
    assert not (file.parent / "new").exists() and leftovers(file.parent) == []


def test_a_backup_never_writes_over_a_broker(folder: Path, file: Path) -> None:
    back_up(folder, file)
    before = everything(folder)
    for taken in (folder, file):
        with pytest.raises(StoreError, match="is not empty"):
            restore(file, taken)
    assert everything(folder) == before
    (file.parent / "empty").mkdir()
    restore(file, file.parent / "empty")
    with pytest.raises(FarflungError, match=r"cannot be read or written \(No such file"):
        restore(file.parent / "gone", file.parent / "other")


def test_a_backup_of_a_broker_of_an_older_version_is_brought_up_to_date(folder: Path, file: Path) -> None:
    back_up(folder, file)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DROP TABLE owner")
        connection.execute("DROP TABLE snapshots")
        for table in ("tokens", "certificates"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN scope")
        connection.execute("PRAGMA user_version = 4")
    restore(file, file.parent / "new")
    assert everything(file.parent / "new") == everything(folder)

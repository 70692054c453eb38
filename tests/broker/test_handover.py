"""A broker with its store on PostgreSQL, and its folder on a second machine."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.broker.scenario import Scenario
from tests.support.postgres import PASSWORD, PostgresServer

from farflung.broker.backup import back_up, restore
from farflung.broker.core import facts
from farflung.broker.journal import Journal
from farflung.broker.security.authority import Authority, create_token
from farflung.broker.security.authority_key import AUTHORITY_KEY_FILE
from farflung.broker.security.tokens import known_tokens
from farflung.broker.storage.contract import StoreOwned
from farflung.broker.storage.opening import ADDRESS_FILE, open_store
from farflung.broker.storage.store import STORE_FILE, Store
from farflung.errors import FarflungError, StoreError
from farflung.transport.security.identity import AUTHORITY_FILE
from farflung.transport.timeouts import Timeouts

TIMEOUTS = Timeouts()


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.database()


@pytest.fixture
def folder(url: str, tmp_path: Path) -> Path:
    """Of a broker with a job that runs and a token, whose store is in the database."""
    folder = tmp_path / "first"
    story = Scenario("a", "b")
    story.running(2)
    with open_store(folder, TIMEOUTS, url) as store:
        Authority.open(folder, store)
        decisions = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
        Journal(store).append(decisions, story.state, story.blobs)
    create_token(folder, "worker")
    return folder


def test_a_second_machine_knows_all_that_the_first_one_knew(folder: Path, tmp_path: Path) -> None:
    file, second = tmp_path / "fleet.handover", tmp_path / "second"
    made = back_up(folder, file)
    assert (made.workers, made.jobs, made.tokens, made.bytes) == (2, 1, 1, file.stat().st_size)
    assert made.store is not None and PASSWORD not in made.store
    restored = restore(file, second)
    assert (restored.jobs, restored.store) == (None, made.store)
    modes = {path.name: path.stat().st_mode & 0o777 for path in second.iterdir()}
    assert modes == {ADDRESS_FILE: 0o600, AUTHORITY_KEY_FILE: 0o600, AUTHORITY_FILE: 0o644}
    assert file.stat().st_mode & 0o777 == 0o600
    tokens = known_tokens(folder)
    with open_store(folder, TIMEOUTS) as store:
        Authority.open(folder, store)
        state = Journal(store).state
        with pytest.raises(StoreOwned, match="another broker"):
            open_store(second, TIMEOUTS)
    with open_store(second, TIMEOUTS) as store:
        Authority.open(second, store)
        assert Journal(store).state == state and len(store.blobs(state.blobs())) == len(set(state.blobs()))
    assert known_tokens(second) == tokens and len(tokens) == 1


def test_a_folder_without_the_authority_of_the_fleet_is_refused(
    folder: Path, url: str, tmp_path: Path
) -> None:
    for other in ("new", "of-another-fleet"):
        if other == "of-another-fleet":
            (tmp_path / other).mkdir()
            with Store(tmp_path / "file") as store:
                Authority.open(tmp_path / other, store)
        refusal = pytest.raises(StoreError, match="farflung broker backup FILE, and here farflung broker")
        with open_store(tmp_path / other, TIMEOUTS, url) as store, refusal:
            Authority.open(tmp_path / other, store)
        assert (tmp_path / other / AUTHORITY_KEY_FILE).exists() == (other == "of-another-fleet")
    with open_store(folder, TIMEOUTS) as store:
        Authority.open(folder, store)


def test_an_address_is_remembered_once_it_was_right(folder: Path, url: str, tmp_path: Path) -> None:
    assert (folder / ADDRESS_FILE).read_text() == f"{url}\n"
    for wrong in ("postgresql://here/@", url.replace("kept", "lost")):
        with pytest.raises(StoreError):
            open_store(folder, TIMEOUTS, wrong)
    assert (folder / ADDRESS_FILE).read_text() == f"{url}\n"
    (folder / ADDRESS_FILE).write_bytes(b"\xff")
    with pytest.raises(StoreError, match="cannot be read"):
        open_store(folder, TIMEOUTS)


def test_a_broker_does_not_leave_its_file_behind_for_a_database(url: str, tmp_path: Path) -> None:
    create_token(tmp_path, "worker")
    with pytest.raises(StoreError, match=rf"has a broker whose store is a file there \({STORE_FILE}\)"):
        open_store(tmp_path, TIMEOUTS, url)
    assert not (tmp_path / ADDRESS_FILE).exists() and len(known_tokens(tmp_path)) == 1


def test_a_handover_file_that_is_damaged_makes_no_folder(folder: Path, tmp_path: Path) -> None:
    file, second = tmp_path / "fleet.handover", tmp_path / "second"
    (folder / ADDRESS_FILE).write_text((folder / ADDRESS_FILE).read_text())
    back_up(folder, file)
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole.replace(b"postgresql://", b"postgresqlx//")):
        file.write_bytes(damaged)
        with pytest.raises(FarflungError) as caught:
            restore(file, second)
        assert "\n" not in str(caught.value) and "kept" not in str(caught.value)
        assert not second.exists()


def test_no_password_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with ExitStack() as opened:
        store = opened.enter_context(open_store(folder, TIMEOUTS))
        assert PASSWORD not in store.name and "kept" not in store.name
    assert "kept" not in caplog.text

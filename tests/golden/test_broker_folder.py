"""A broker's folder of any version is opened, and everything in it counts as it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.golden.broker_folder import FILE, MADE_AT, record, restore, summary
from tests.golden.formats import VERSIONS, tag_of

from farflung.broker.core import facts
from farflung.broker.core.state import replay
from farflung.broker.journal import Journal
from farflung.broker.security.authority import Authority
from farflung.broker.storage import store
from farflung.broker.storage.store import STORE_FILE, Store
from farflung.broker.survey.measurements import read_row, row
from farflung.transport.net.address_file import read_address
from farflung.transport.security.certificates import certificate_to_pem, public_bytes, public_key_digest
from farflung.transport.security.identity import Identity

KEPT = [version for version in VERSIONS if (version / FILE).exists()]
IN_NEWEST = pytest.mark.parametrize("version", KEPT[-1:], ids=lambda version: version.name)


@pytest.fixture(params=KEPT, ids=lambda version: version.name)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A version, at the time at which its certificates were good."""
    monkeypatch.setattr(store.time, "time", lambda: MADE_AT + 60)
    path: Path = request.param
    return path


@pytest.fixture
def document(version: Path) -> dict[str, Any]:
    """What was recorded beside the store."""
    found: dict[str, Any] = json.loads((version / FILE).read_text())
    return found


@pytest.fixture
def folder(version: Path, document: dict[str, Any], tmp_path: Path) -> Path:
    """A copy of the broker's folder."""
    restore(document["broker"], tmp_path / "broker")
    (tmp_path / "broker" / STORE_FILE).write_bytes((version / STORE_FILE).read_bytes())
    return tmp_path / "broker"


def test_the_log_is_read_and_gives_the_state_that_it_gave(folder: Path, document: dict[str, Any]) -> None:
    with Store(folder) as kept:
        events = list(kept.events())
    assert [event.hex() for event in events] == document["facts"]
    decisions = [facts.decode(event) for event in events]
    assert json.loads(json.dumps(summary(replay(decisions)))) == document["state"]


def test_a_start_gives_the_state_that_the_log_gave(folder: Path, document: dict[str, Any]) -> None:
    with Store(folder) as kept:
        assert json.loads(json.dumps(summary(Journal(kept).state))) == document["state"]


def test_what_would_be_recorded_today_has_a_snapshot_in_the_middle_of_its_log(tmp_path: Path) -> None:
    record(tmp_path)
    document = json.loads((tmp_path / FILE).read_text())
    with Store(tmp_path) as kept:
        assert [event.hex() for event in kept.events()] == document["facts"]
        journal = Journal(kept)
        assert json.loads(json.dumps(summary(journal.state))) == document["state"]
    assert 0 < journal.replayed < len(document["facts"])


def test_blobs_that_open_jobs_name_are_there(folder: Path, document: dict[str, Any]) -> None:
    with Store(folder) as kept:
        state = replay(map(facts.decode, kept.events()))
        if "blobs" in document:  # older stores held the graph in the log, and no programs
            assert sorted(blob.hex() for blob in kept.blobs(state.blobs()).values()) == document["blobs"]
    assert state.jobs["job-2"].blobs.graph and not state.jobs["job-1"].blobs.digests()


@IN_NEWEST
def test_the_newest_log_holds_every_fact_as_it_is_written_today(folder: Path) -> None:
    with Store(folder) as kept:
        events = list(kept.events())
    decisions = [facts.decode(event) for event in events]
    assert [facts.encode(fact) for fact in decisions] == events
    assert {tag_of(type(fact)) for fact in decisions} == set(map(tag_of, get_args(facts.AnyDecision)))


def test_tokens_and_measurements_are_read(folder: Path, document: dict[str, Any]) -> None:
    with Store(folder) as kept:
        tokens, measured = kept.tokens(), kept.measurements()
        assert kept.joined_with(tokens[0].digest) == ["w-1"]
    assert [
        [one.digest.hex(), one.role, one.uses, one.used, one.expires_at, one.made_at] for one in tokens
    ] == document["tokens"]
    assert sorted(body.hex() for body in measured) == sorted(body for _, _, body in document["measurements"])
    for body in measured:
        one = read_row(body)
        assert one is not None
        assert row(one)[2] == body


def test_the_authority_and_its_holders_are_whom_they_were(folder: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".pem", ".json")}
    with Store(folder) as kept:
        authority = Authority.open(folder, kept, lambda: MADE_AT + 60)
        identity, holder = authority.identity(), kept.holder("w-1")
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert (identity.id, identity.role, identity.broker) == ("broker", "broker", "")
    assert read_address(folder) == "[::]:7700"
    assert holder is not None and (holder.id, holder.role) == ("w-1", "worker")


def test_a_worker_is_who_it_was(folder: Path, document: dict[str, Any], tmp_path: Path) -> None:
    restore(document["worker"], tmp_path / "worker")
    worker = Identity.load(tmp_path / "worker")
    assert (worker.id, worker.role, worker.broker) == ("w-1", "worker", "192.0.2.7:7700")
    worker.client_context()
    with Store(folder) as kept:
        holder = kept.holder("w-1")
    assert holder is not None and holder.certificate == certificate_to_pem(worker.certificate)
    assert holder.key_digest == public_key_digest(public_bytes(worker.certificate.public_key()))

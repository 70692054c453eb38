"""The log of decisions with its snapshots: what is stored comes back, however the broker ends."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.core.test_state import Chaos
from tests.broker.scenario import DEVICE, Scenario
from tests.support.examples import examples

from farflung.broker import journal
from farflung.broker.core import facts
from farflung.broker.core.records import State, durable
from farflung.broker.core.state import replay
from farflung.broker.journal import Journal
from farflung.broker.storage.store import STORE_FILE, Store
from farflung.errors import FarflungError, StoreError

EVERY = 10


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots after a few decisions."""
    monkeypatch.setattr(journal, "SNAPSHOT_EVERY", EVERY)


def admitted(number: int) -> facts.WorkerAdmitted:
    return facts.WorkerAdmitted(float(number), "w", DEVICE, "lab", ["w.example:1"], f"boot-{number}")


def append(log: Journal, *decisions: facts.AnyDecision) -> State:
    """Store decisions in one group; the state after them."""
    after = replay(decisions, log._stored)
    log.append([facts.encode(decision) for decision in decisions], after)
    return after


def append_to(folder: Path, numbers: range) -> None:
    """One decision a group, and no clean end."""
    with Store(folder) as store:
        log = Journal(store)
        for number in numbers:
            append(log, admitted(number))


def newest(folder: Path) -> int:
    """The number of the newest decision that a start on the folder finds; all is as after that one."""
    with Store(folder) as store:
        state = Journal(store).state
    if not state.workers:
        return 0
    number = int(state.workers["w"].boot.removeprefix("boot-"))
    assert state == replay([admitted(number)])
    return number


def rows(folder: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(folder / STORE_FILE)) as connection, connection:
        return connection.execute(query).fetchall()


@settings(max_examples=examples(40))
@given(st.data())
def test_any_history_comes_back_through_any_number_of_starts(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("broker")
    chaos = Chaos(data)
    chaos.play(60)
    log = [fact for fact in chaos.story.facts if isinstance(fact, facts.Decision)]
    while log:
        size = data.draw(st.integers(1, 12))
        group, log = log[:size], log[size:]
        with Store(folder) as store:
            kept = Journal(store)
            state = append(kept, *group)
            if data.draw(st.booleans()):
                kept.close()
        with Store(folder) as store:
            found = Journal(store).state
        assert found == state and list(found.jobs) == list(state.jobs)
    with Store(folder) as store:
        assert Journal(store).state == durable(chaos.story.state)


def test_the_log_holds_what_the_two_newest_snapshots_do_not_both_cover(tmp_path: Path) -> None:
    append_to(tmp_path, range(1, 10 * EVERY + 4))
    assert rows(tmp_path, "SELECT sequence FROM snapshots") == [(9 * EVERY,), (10 * EVERY,)]
    bounds = rows(tmp_path, "SELECT min(sequence), max(sequence), count(*) FROM events")
    assert bounds == [(9 * EVERY + 1, 10 * EVERY + 3, EVERY + 3)]
    with Store(tmp_path) as store:
        log = Journal(store)
    assert log.replayed == 3 and log.state == replay([admitted(10 * EVERY + 3)])


def test_the_file_does_not_grow_with_the_number_of_decisions(tmp_path: Path) -> None:
    append_to(tmp_path, range(1, 20 * EVERY))
    size = (tmp_path / STORE_FILE).stat().st_size
    append_to(tmp_path, range(20 * EVERY, 100 * EVERY))
    assert (tmp_path / STORE_FILE).stat().st_size == size


def test_many_short_lives_of_a_broker_count_together(tmp_path: Path) -> None:
    for number in range(1, 3 * EVERY + 1):
        append_to(tmp_path, range(number, number + 1))
    assert len(rows(tmp_path, "SELECT sequence FROM snapshots")) == 2
    assert len(rows(tmp_path, "SELECT sequence FROM events")) <= 2 * EVERY


def test_after_a_clean_end_nothing_is_replayed(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        log = Journal(store)
        state = append(log, *(admitted(number) for number in range(1, 5)))
        log.close()
    for _ in range(2):
        with Store(tmp_path) as store:
            log = Journal(store)
            assert (log.replayed, log.state) == (0, state)
            log.close()  # nothing is new
    assert rows(tmp_path, "SELECT sequence FROM snapshots") == [(4,)]


def test_a_large_state_is_written_less_often(tmp_path: Path) -> None:
    story = Scenario()
    for _ in range(8 * EVERY):
        story.submit(1)
    with Store(tmp_path) as store:
        log = Journal(store)
        for fact in story.facts:
            if isinstance(fact, facts.Decision):
                append(log, fact)
    before, last = (sequence for (sequence,) in rows(tmp_path, "SELECT sequence FROM snapshots"))
    assert last > 1.9 * before > 3 * EVERY


def damage(folder: Path, *sequences: int) -> None:
    for sequence in sequences:
        rows(folder, f"UPDATE snapshots SET body = zeroblob(length(body)) WHERE sequence = {sequence}")


def test_a_damaged_snapshot_falls_back_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append_to(tmp_path, range(1, 3 * EVERY + 3))
    damage(tmp_path, 3 * EVERY)
    with Store(tmp_path) as store:
        log = Journal(store)
    assert log.state == replay([admitted(3 * EVERY + 2)]) and log.replayed == EVERY + 2
    assert f"the log snapshot at event {3 * EVERY} is damaged" in caplog.text
    # The next one takes the damaged one's place, and never a whole one's.
    append_to(tmp_path, range(3 * EVERY + 3, 3 * EVERY + 4))
    assert [sequence for (sequence,) in rows(tmp_path, "SELECT sequence FROM snapshots")] == [
        2 * EVERY,
        3 * EVERY + 3,
    ]
    damage(tmp_path, 3 * EVERY + 3)
    assert newest(tmp_path) == 3 * EVERY + 3


def test_a_damaged_first_snapshot_falls_back_to_the_whole_log(tmp_path: Path) -> None:
    append_to(tmp_path, range(1, EVERY + 3))
    damage(tmp_path, EVERY)
    assert newest(tmp_path) == EVERY + 2


def test_a_log_of_which_no_snapshot_is_whole_is_one_clear_line(tmp_path: Path) -> None:
    append_to(tmp_path, range(1, 3 * EVERY + 3))
    damage(tmp_path, 2 * EVERY, 3 * EVERY)
    with Store(tmp_path) as store, pytest.raises(StoreError, match="no whole log snapshot") as caught:
        Journal(store)
    assert "\n" not in str(caught.value) and "restore a backup" in str(caught.value)


@pytest.mark.parametrize("lost", [3 * EVERY + 2, 3 * EVERY - 1, 2 * EVERY + 1])
def test_a_hole_in_the_log_is_found(tmp_path: Path, lost: int) -> None:
    append_to(tmp_path, range(1, 3 * EVERY + 4))
    damage(tmp_path, 3 * EVERY)
    rows(tmp_path, f"DELETE FROM events WHERE sequence = {lost}")
    with Store(tmp_path) as store, pytest.raises(StoreError, match="1 events after event"):
        Journal(store)


def test_events_behind_a_snapshot_cannot_be_mistaken_for_the_whole_log(tmp_path: Path) -> None:
    append_to(tmp_path, range(1, 3 * EVERY))
    with Store(tmp_path) as store, pytest.raises(StoreError, match="are missing"):
        list(store.events())


def test_a_snapshot_that_another_version_wrote_is_one_clear_line(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append([facts.encode(admitted(1))], snapshot=b"\x81\xa6format\x07")
        with pytest.raises(FarflungError, match="format 7, this version reads 1"):
            Journal(store)


def test_a_crash_between_any_two_writes_leaves_the_state_before_or_after(tmp_path: Path) -> None:
    """Copies the files at each statement, as a killed process leaves them, and starts on each copy."""
    folder, copies = tmp_path / "broker", count()
    append_to(folder, range(1, 2 * EVERY))
    with Store(folder) as store:
        log = Journal(store)
        found = []
        for number in range(2 * EVERY, 2 * EVERY + 2):  # the first one stores a snapshot as well
            before = next(copies)
            store._connection.set_trace_callback(
                lambda _: shutil.copytree(folder, tmp_path / f"copy-{next(copies)}")
            )
            append(log, admitted(number))
            store._connection.set_trace_callback(None)
            found += [newest(tmp_path / f"copy-{at}") for at in range(before + 1, next(copies))]
            assert found[-1] == number - 1  # the commit itself is traced before it is done
    assert len(found) > 10 and found == sorted(found)
    assert newest(folder) == 2 * EVERY + 1


@pytest.mark.faults
@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_broker_killed_while_it_writes_knows_all_that_it_had_stored(tmp_path: Path) -> None:
    """kill -9 at random moments of a process that stores decisions and snapshots without pause."""
    folder, said = tmp_path / "broker", tmp_path / "said"
    said.write_text("0")
    stored = 0
    for _ in range(20):
        process = os.fork()
        if process == 0:
            _append_without_end(folder, said, stored + 1)
        try:
            while int(said.read_text() or 0) < stored + 2 * EVERY:
                assert os.waitpid(process, os.WNOHANG) == (0, 0)
                time.sleep(0.002)
            time.sleep(random.uniform(0.0, 0.02))
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        promised = int(said.read_text())
        stored = newest(folder)
        assert promised <= stored <= promised + 1
    assert len(rows(folder, "SELECT sequence FROM events")) <= 2 * EVERY


def _append_without_end(folder: Path, said: Path, first: int) -> None:
    try:
        with Store(folder) as store:
            log = Journal(store)
            for number in count(first):
                append(log, admitted(number))
                new = said.with_suffix(".new")
                new.write_text(str(number))
                new.replace(said)
    finally:
        os._exit(1)


@pytest.fixture(params=["v1", "v2"])
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A broker's folder that a version without snapshots wrote."""
    golden = Path(__file__).parent.parent / "golden" / request.param / STORE_FILE
    folder = tmp_path / "older"
    folder.mkdir()
    (folder / STORE_FILE).write_bytes(golden.read_bytes())
    yield folder


def test_an_older_store_is_taken_over_and_then_has_snapshots(older: Path) -> None:
    with Store(older) as store:
        expected = replay(map(facts.decode, store.events()))
        log = Journal(store)
        assert log.state == expected and log.replayed
        log.close()
    with Store(older) as store:
        log = Journal(store)
        assert (log.state, log.replayed) == (expected, 0)


def test_a_disk_that_is_full_while_a_snapshot_is_written_loses_nothing(tmp_path: Path) -> None:
    append_to(tmp_path, range(1, 2 * EVERY))
    with Store(tmp_path) as store:
        log = Journal(store)
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        large = facts.WorkerLost(1.0, "w", "x" * 100_000)
        with pytest.raises(StoreError, match="free disk space"):
            append(log, large)
        log.close()  # no second error hides the first
    assert newest(tmp_path) == 2 * EVERY - 1
    append_to(tmp_path, range(2 * EVERY, 4 * EVERY))
    assert newest(tmp_path) == 4 * EVERY - 1


@pytest.mark.faults
@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_whose_files_may_not_grow_ends_with_one_line_and_a_whole_store(tmp_path: Path) -> None:
    """The state grows until it finds no room: in a file, in the middle of whatever is written then."""
    folder, said, last = tmp_path / "broker", tmp_path / "said", 0
    for limit in (300_000, 333_333, 377_777, 900_000):
        process = os.fork()
        if process == 0:
            _grow_until_full(folder, said, last, limit)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
        stored, error = said.read_text().split(" ", 1)
        assert error.count("\n") == 0 and "free disk space" in error
        with Store(folder) as store:
            state = Journal(store).state
        assert list(state.workers) == [f"w-{number}" for number in range(1, int(stored) + 1)]
        assert int(stored) > last
        last = int(stored)
    assert rows(folder, "SELECT count(*) FROM snapshots") == [(2,)]


def _grow_until_full(folder: Path, said: Path, number: int, limit: int) -> None:
    try:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with Store(folder) as store:
            log = Journal(store)
            try:
                while True:
                    name = f"w-{number + 1}"
                    append(log, facts.WorkerAdmitted(0.0, name, DEVICE, "lab" * 500, ["w.example:1"], "boot"))
                    number += 1
            except StoreError as error:
                said.write_text(f"{number} {error}")
                os._exit(0)
    finally:
        os._exit(1)

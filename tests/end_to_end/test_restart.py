"""A broker that dies takes no knowledge along: on its folder it knows its workers and its jobs again."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.processes import LEASE_SECONDS, Machines, Run, machines, train

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Machines]:
    with machines(tmp_path / "machines") as started:
        yield started


STEPS = 60


def losses(run: Run) -> list[float]:
    """The loss of each step, of which each must have one row."""
    assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
    return [row["loss"] for row in run.rows]


def test_a_broker_killed_in_mid_run_is_restarted_on_its_folder(on: Machines) -> None:
    broker = on.broker()
    token = on.token("worker", "--uses", "2")
    workers = {name: on.worker(name, token) for name in ("a", "b")}
    submitter = ["--token", on.token("submitter"), "--broker", on.address]
    first = train(on, "first", "--workers", "2", "--steps", str(STEPS), *submitter)
    first.reaches(3)
    broker.signal(signal.SIGKILL)
    broker.code()

    first.command.says(f"the broker at {on.address} was lost", "Waiting for it to come back, at most 1 day")
    for worker in workers.values():
        worker.says("lost the broker", "dialling again")
        worker.says("refused the connection", "trying again")
    assert "refused the connection" in on.fails("desk", "status")
    assert "refused the connection" in on.fails("desk", "train", "net.py", "--out", "nowhere")

    broker = on.broker()
    assert first.command.code() == 0, first.command.err
    assert len(first.events("broker lost")) == len(first.events("returned")) == 1
    on.idle("a", "b")
    (job,) = on.status()["jobs"]
    assert (job["job"], job["state"], job["step"]) == ("job-1", "done", STEPS)
    assert on.status()["timeouts"]["lease_seconds"] == LEASE_SECONDS
    second = train(on, "second", "--workers", "2", "--steps", str(STEPS))
    assert second.command.code() == 0, second.command.err
    assert second.summary["job"] == "job-2" and losses(first) == losses(second)
    for command in (*workers.values(), broker):
        command.stop()


@pytest.mark.full
@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_a_broker_that_is_away_is_awaited(on: Machines, how: str) -> None:
    broker = on.broker()
    worker = on.worker("a", on.token("worker"))
    run = train(on, "run", "--workers", "1", "--token", on.token("submitter"), "--broker", on.address)
    run.reaches(3)
    if how == "stopped":
        broker.stop()
        run.command.says("the broker is shutting down", "Waiting for it to come back")
        broker = on.broker()
    else:
        broker.signal(signal.SIGSTOP)
        run.command.says(f"nothing heard from the broker for {LEASE_SECONDS:g} s", "Waiting for it")
        broker.signal(signal.SIGCONT)
    run.command.says("back at job-1")
    run.reaches(len(run.rows) + 3)
    run.command.stop()
    assert run.summary["weights_step"] == run.summary["steps"] == len(run.rows)
    on.idle("a")
    for command in (worker, broker):
        command.stop()


def test_a_worker_waits_for_a_broker_that_is_not_there_yet(on: Machines) -> None:
    broker = on.broker()
    token = on.token("worker")
    worker = on.worker("a", token)
    worker.says("idle in the backup pool")
    worker.stop()
    broker.stop()
    worker = on.worker("a")
    worker.says("refused the connection", "trying again")
    broker = on.broker()
    worker.says("idle in the backup pool")
    for command in (worker, broker):
        command.stop()


@pytest.mark.full
def test_a_fleet_goes_on_with_a_broker_that_was_restored_from_a_backup(on: Machines) -> None:
    broker = on.broker()
    worker = on.worker("a", on.token("worker"))
    worker.says("idle in the backup pool")
    submitter = ["--token", on.token("submitter"), "--broker", on.address]
    first = train(on, "first", "--workers", "1", "--steps", "3", *submitter)
    assert first.command.code() == 0, first.command.err
    file = on.folder / "fleet.backup"
    saved = on.start("hub", "broker", "backup", str(file))
    assert saved.code() == 0 and "1 worker, 1 job" in saved.err and "keep" in saved.err
    broker.signal(signal.SIGKILL)
    broker.code()
    shutil.rmtree(on.folder / "hub" / "broker")

    restored = on.start("hub", "broker", "restore", str(file))
    assert restored.code() == 0, restored.err
    broker = on.broker()
    assert "a new broker" not in broker.err
    on.idle("a")  # which needed no new token
    assert [job["state"] for job in on.status()["jobs"]] == ["done"]
    second = train(on, "second", "--workers", "1", "--steps", "5")
    assert second.command.code() == 0, second.command.err
    assert second.summary["job"] == "job-2"
    for command in (worker, broker):
        command.stop()


def test_a_broker_whose_folder_was_taken_over_ends_with_one_line(on: Machines) -> None:
    first = on.broker()
    worker = on.worker("a", on.token("worker"))
    worker.says("idle in the backup pool")
    (on.folder / "hub" / "broker" / "broker.lock").unlink()
    second = on.start("hub", "broker", "--listen", "127.0.0.1:0")
    second.says("the broker listens on")
    worker.stop()  # which the first one cannot write down
    assert first.code() == 2
    (line,) = [line for line in first.err.splitlines() if "error:" in line]
    assert "was taken over by another broker (process" in line
    second.stop()


def test_a_folder_serves_one_broker_at_a_time(on: Machines) -> None:
    broker = on.broker()
    assert "another broker" in on.fails("hub", "broker", "--listen", "127.0.0.1:0")
    assert broker.process.poll() is None
    broker.stop()

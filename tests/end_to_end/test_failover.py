"""A broker whose store is on PostgreSQL: its machine may be lost, and its database away for a while."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.ports import HOST, held_port
from tests.support.postgres import PostgresServer
from tests.support.processes import Command, Machines, eventually, machines, train

from farflung.broker.service import serve
from farflung.broker.storage.contract import StoreAway

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]

LEASE = ["--lease", "2", "--no-survey"]


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Machines]:
    with machines(tmp_path / "machines") as started:
        yield started


@pytest.mark.full
def test_a_fleet_outlives_a_restart_of_the_database_and_the_loss_of_the_brokers_machine(
    on: Machines, postgres: PostgresServer
) -> None:
    with held_port() as port:
        both = f"{on.address},{HOST}:{port}"
        first = on.start("hub", "broker", "--listen", on.address, "--store", postgres.database(), *LEASE)
        first.says("listens on", on.address)
        joining = ["join", both, "--name", "a", "--token", on.token("worker"), "--listen", on.listen]
        worker = on.start("a", *joining)
        run = train(on, "run", "--steps", "100000", "--token", on.token("submitter"), "--broker", both)
        run.reaches(3)
        file = str(on.folder / "fleet.handover")
        assert on.document("hub", "broker", "backup", file)["holds"]["jobs"] == 1
        assert on.document("spare", "broker", "restore", file)["holds"]["store"].startswith("postgresql://")
        here = ["broker", "--listen", f"{HOST}:{port}", *LEASE]
        assert "another broker (process" in on.fails("spare", *here)
        second = on.start("spare", *here, "--standby")
        second.says("standing by to take over: another broker (process")
        database_is_away(on, first, on.token("viewer"), both, postgres)
        assert "lost the" not in worker.err
        done = len(run.rows)
        first.signal(signal.SIGKILL)
        first.code()
        second.says("taking over the store")
        second.says("the broker listens on", f":{port}")

        run.reaches(done + 5)
        run.stops()
        rows = [row["step"] for row in run.rows]
        assert rows == list(range(1, len(rows) + 1))
        on.idle("a")  # which needed no new token
        assert [job["state"] for job in on.status()["jobs"]] == ["cancelled"]
        assert len(on.document("spare", "token", "list")["tokens"]) == 3
        assert "another broker (process" in on.fails("hub", "broker", "--listen", on.address, *LEASE)
        for command in (worker, second):
            command.stop()
    logs = "".join(path.read_text() for path in (on.folder / "logs").iterdir())
    assert "kept%3Asecret" not in logs and "kept:secret" not in logs


def database_is_away(
    on: Machines, broker: Command, token: str, address: str, postgres: PostgresServer
) -> None:
    """For more than a lease. Whoever wants to join is refused, and who is there stays."""
    joining = ["status", "--broker", address, "--token", token]
    postgres.stop()
    try:
        broker.says("nothing is decided until the database is back")
        assert "the broker's store does not answer now: try again" in on.fails("viewer", *joining)
        time.sleep(1)
        assert on.status()["workers"][0]["state"] == "training"
    finally:
        postgres.start()
    broker.says("is back, after")
    assert len(on.document("viewer", *joining)["workers"]) == 1
    assert broker.process.poll() is None


def test_a_broker_whose_database_stays_away_ends_with_one_line(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    async def scene() -> None:
        serving = serve(tmp_path / "hub", f"{HOST}:0", 0.1, store_address=postgres.database())
        stopping = asyncio.to_thread(stop_once_it_listens)
        with pytest.raises(StoreAway, match=r"did not come back within 1\.2 s"):
            await asyncio.wait_for(asyncio.gather(serving, stopping), 60)

    def stop_once_it_listens() -> None:
        eventually("a broker listens", (tmp_path / "hub" / "address").exists)
        postgres.stop()

    try:
        asyncio.run(scene())
    finally:
        postgres.start()

"""Certificates that end while a job trains: those in use are renewed; a worker that slept too long ends."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest
from tests.support.processes import Machines, eventually, machines, train

from farflung.transport.security.identity import Identity

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults, pytest.mark.full]

LIFETIME_SECONDS = 30.0

BROKER = """
import functools, sys
from farflung.broker import service
from farflung.cli import main
service.BrokerService = functools.partial(service.BrokerService, certificate_seconds={seconds})
sys.exit(main.run(sys.argv[3:]))  # after `-m farflung`
"""


class ShortLived(Machines):
    """Machines whose broker issues certificates that end soon."""

    def python(self, home: str) -> list[str]:
        if home != "hub":
            return super().python(home)
        script = self.folder / "hub.py"
        script.write_text(BROKER.format(seconds=LIFETIME_SECONDS))
        return [sys.executable, str(script)]


def ends_at(on: Machines, name: str) -> float:
    """When the certificate on a worker's disk ends."""
    return Identity.load(on.folder / name / "worker").expires_at


def test_a_certificate_that_ends_while_its_worker_sleeps_costs_the_fleet_that_worker_alone(
    tmp_path: Path,
) -> None:
    with machines(tmp_path, ShortLived) as on:
        broker = on.broker()
        token = on.token("worker", "--uses", "3")
        workers = {name: on.worker(name, token) for name in ("a", "b", "c")}
        for worker in workers.values():
            worker.says("idle in the backup pool")
        submitter = ["--token", on.token("submitter"), "--broker", on.address]
        run = train(on, "run", "--workers", "2", *submitter)
        run.reaches(3)
        members = set(run.events("planned")[-1]["workers"])
        slept = sorted(members)[-1]
        workers[slept].signal(signal.SIGSTOP)
        ended = ends_at(on, slept)
        eventually("its place is taken", lambda: bool(run.events("regrouping") or run.events("rolled back")))
        eventually("its certificate ends", lambda: time.time() > ended + 1)
        run.reaches(len(run.rows) + 3)
        workers[slept].signal(signal.SIGCONT)
        assert workers.pop(slept).code() == 2
        line = on_error(on, slept)
        assert (
            f"the certificate of {slept} expired at" in line and "farflung token create --role worker" in line
        )
        run.reaches(len(run.rows) + 3)
        assert all(ends_at(on, name) > ended for name in workers)  # these were renewed, more than once
        run.command.stop()
        for command in (*workers.values(), broker):
            command.stop()


def on_error(on: Machines, name: str) -> str:
    """The error with which the newest command of a machine has ended."""
    log = max((on.folder / "logs").glob(f"*-{name}.err"), key=lambda path: path.stat().st_mtime)
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
    return line

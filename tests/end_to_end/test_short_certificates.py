"""Certificates that end while a job trains: those in use are renewed; a worker that slept comes back."""

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
import sys
from farflung.broker import service
from farflung.cli import main
made = service.BrokerService
service.BrokerService = lambda *given, **named: made(*given, **{{**named, "certificate_seconds": {seconds}}})
sys.exit(main.run(sys.argv[3:]))  # after `-m farflung`
"""


class ShortLived(Machines):
    """Machines whose broker issues certificates that end sooner than any setting allows."""

    def python(self, home: str) -> list[str]:
        if home != "hub":
            return super().python(home)
        script = self.folder / "hub.py"
        script.write_text(BROKER.format(seconds=LIFETIME_SECONDS))
        return [sys.executable, str(script)]


def ends_at(on: Machines, name: str) -> float:
    """When the certificate on a worker's disk ends."""
    return Identity.load(on.folder / name / "worker", ended_too=True).expires_at


def test_a_certificate_that_ends_while_its_worker_sleeps_is_renewed_when_it_wakes(
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
        eventually("its certificate is renewed", lambda: ends_at(on, slept) > ended)
        run.reaches(len(run.rows) + 3)
        assert all(ends_at(on, name) > ended for name in workers)
        assert workers[slept].process.poll() is None
        run.command.stop()
        for command in (*workers.values(), broker):
            command.stop()

"""The key of the authority is replaced while a job trains: members stay, and a newcomer takes part."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.end_to_end.test_short_certificates import ShortLived
from tests.support.processes import Machines, eventually, machines, train

from farflung.transport.security.certificates import certificates_from_pem, fingerprint

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults, pytest.mark.full]


def trusted(on: Machines, home: str, role: str = "worker") -> list[bytes]:
    """The fingerprints of the authorities that somebody trusts."""
    authorities = (on.folder / home / role / "authority.pem").read_bytes()
    return [fingerprint(one) for one in certificates_from_pem(authorities)]


def test_a_job_goes_on_while_its_members_come_to_trust_a_new_key(tmp_path: Path) -> None:
    with machines(tmp_path, ShortLived) as on:
        broker = on.broker()
        token = on.token("worker", "--uses", "3")
        workers = {name: on.worker(name, token) for name in ("a", "b")}
        for worker in workers.values():
            worker.says("idle in the backup pool")
        submitter = ["--token", on.token("submitter"), "--broker", on.address]
        run = train(on, "run", "--workers", "2", *submitter)
        run.reaches(3)
        (old,) = trusted(on, "a")

        broker.stop()
        new = bytes.fromhex(on.document("hub", "broker", "rotate")["fingerprint"])
        broker = on.broker()
        run.reaches(len(run.rows) + 3)
        for name in workers:
            eventually(f"{name} renews", lambda name=name: trusted(on, name) == [new, old])  # type: ignore[misc]
        run.reaches(len(run.rows) + 3)
        assert not run.events("rolled back")

        late = on.worker("late", on.token("worker"))  # by a token of the new key
        late.says("idle in the backup pool")
        assert trusted(on, "late") == [new, old]
        workers[sorted(workers)[0]].stop()  # its share goes to the late one, with links to those of before
        run.reaches(len(run.rows) + 3)
        assert "late" in run.events("planned")[-1]["workers"]
        run.stops()
        for command in (late, workers["b"], broker):
            command.stop()

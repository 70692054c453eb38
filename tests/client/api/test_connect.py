"""A program trains on the workers of a broker: real processes, from the first token to a resumed run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.localhost.jobs import Vectors, job
from tests.support.processes import eventually, machines

import farflung
from farflung.errors import IdentityError

pytestmark = pytest.mark.processes

ENDLESS = 1_000_000


@pytest.mark.full
def test_a_program_trains_at_a_broker_and_goes_on_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own"
    steps: list[int] = []
    validations: list[int] = []
    saved: list[tuple[int, str]] = []
    threads = set[str]()

    def on_step(row: farflung.StepRow) -> None:
        steps.append(row.step)
        threads.add(threading.current_thread().name)

    with machines(tmp_path / "machines") as on:
        broker = on.broker()
        token = on.token("worker", "--uses", "2")
        workers = [on.worker(name, token) for name in ("a", "b")]
        with pytest.raises(IdentityError, match=r"add token= "):
            farflung.connect(on.address, folder=own)
        with farflung.connect(on.address, token=on.token("submitter"), folder=own) as fleet:
            eventually("two workers", lambda: sorted(one.worker for one in fleet.workers) == ["a", "b"])
            run = fleet.train(
                job(ENDLESS, validation=Vectors(), name="chain"),
                workers=2,
                checkpoint_every=2,
                on_step=on_step,
                on_validation=lambda step, loss: validations.append(step),
                on_checkpoint=lambda step, place: saved.append((step, place)),
            )
            seen = []
            for row in run.metrics:
                seen.append(row["step"])
                if row["step"] == 4:
                    run.stop()
            summary = run.wait()
            assert (summary.state, run.status, run.folder) == (
                "cancelled",
                "cancelled",
                tmp_path / "runs/chain",
            )
            assert seen == steps == [*range(1, summary.steps + 1)] and len(seen) >= 4
            assert validations[0] == 0 and threads == {"farflung-callbacks"}
            assert saved and saved[-1][0] == summary.steps
            assert run.plan is not None and sorted(run.plan.workers()) == ["a", "b"]
        with farflung.connect(folder=own) as fleet:  # the identity knows the broker
            end = summary.steps + 3
            more = fleet.train(job(end, validation=Vectors(), name="chain"), steps=end, resume="runs/chain")
            assert [row.step for row in more.metrics] == [*range(summary.steps + 1, end + 1)]
            assert more.wait().state == "done" and more.state_dict()
            assert [known.state for known in fleet.status().jobs] == ["cancelled", "done"]
        for command in (*workers, broker):
            command.stop()

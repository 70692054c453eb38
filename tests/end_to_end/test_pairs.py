"""Two workers of a run are killed at once, and idle ones take their places."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.end_to_end.test_faults import assert_same
from tests.support.processes import Machines, Run, eventually, machines, train

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]

WORKERS = "abcdef"
STEPS = 40


@pytest.mark.full
def test_two_killed_neighbours_are_replaced_and_no_committed_step_runs_again(tmp_path: Path) -> None:
    with machines(tmp_path) as on:
        broker, token = on.broker(), on.token("worker", "--uses", str(len(WORKERS)))
        workers = {name: on.worker(name, token) for name in WORKERS}
        for worker in workers.values():
            worker.says("idle in the backup pool")
        first = ["--token", on.token("submitter"), "--broker", on.address, "--codec", "int8"]
        undisturbed = train(on, "undisturbed", "--workers", "4", *first, "--steps", str(STEPS))
        assert undisturbed.command.code() == 0
        run = train(on, "pair", "--workers", "4", "--codec", "int8", "--steps", str(STEPS))
        run.reaches(1)
        killed, others = run.workers[1:3], run.workers[0::3]
        protected(on, run)
        for name in killed:
            workers[name].signal(signal.SIGKILL)
        assert_same(run, undisturbed)
        assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
        assert not run.events("rolled back")
        taken = run.events("regrouping")[-1]
        assert set(taken["replayers"]) == set(WORKERS) - {*killed, *others}
        assert taken["replay_from"] <= taken["unit"]  # equal if the kill came right at a version
        assert f"worker {killed[0]}" in str(run.events("regrouping"))
        for name in others:
            workers[name].says("the state stays")
        for command in (*(one for name, one in workers.items() if name not in killed), broker):
            command.stop()


def protected(on: Machines, run: Run) -> None:
    """Wait until each worker's state is on two disks, and a few steps more."""

    def copies() -> int:
        return len(list(on.folder.glob("*/worker/copies/*/*.safetensors")))

    eventually("copies", lambda: copies() >= 2 * len(run.workers))
    run.reaches(len(run.rows) + 3)

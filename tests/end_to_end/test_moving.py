"""A worker that joins while a job trains leads to a better plan, and the run loses no step by the move."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.support.processes import JOB, Run, eventually, machines, train

# Whether a move pays depends on what this machine measures, so a busy one may see none: `make test-all` only.
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults, pytest.mark.full]

LARGE = (
    JOB.replace("nn.Linear(8, 8)", "nn.Linear(768, 768)")
    .replace("arange(8.0)", "arange(768.0)")
    .replace("batch=8,", "batch=64,")
    .replace("seconds = 0.005", "seconds = 0.001")
)
"""So large that devices compute for more than a millisecond, below which predictions mean little."""


def test_a_worker_that_joins_leads_to_a_better_plan_and_no_step_is_lost(tmp_path: Path) -> None:
    with machines(tmp_path) as on:
        (tmp_path / "large.py").write_text(LARGE)
        broker, token = on.broker(), on.token("worker", "--uses", "3")
        workers = [on.worker(name, token) for name in "ab"]
        for worker in workers:
            worker.says("registered", "idle in the backup pool")
        where = ["--token", on.token("submitter"), "--broker", on.address]
        run = train(on, "moves", "--workers", "0", "--steps", "100000", *where, job="large.py")
        run.reaches(3)
        workers.append(on.worker("c", token))
        eventually("the job moves", lambda: bool(run.events("another cut")))
        (cut,) = run.events("another cut")
        run.reaches(cut["step"] + 3)
        run.command.signal(signal.SIGINT)
        run.command.code()
        assert [row["step"] for row in run.rows] == list(range(1, len(run.rows) + 1))
        assert [row["attempt"] for row in run.rows].index(2) == cut["step"] - 1
        (moved,) = [one for one in run.events("replanning") if one["moves"]]
        assert "it moves" in moved["words"] and "c" in run.events("planned")[-1]["workers"]
        broker.says("is loading on ", "from copies of its state that were made on another plan")
        assert run.command.err.count(moved["words"]) == 1
        _assert_undisturbed(
            run, train(on, "alone", "--local", "1", "--steps", str(len(run.rows)), job="large.py")
        )
        for command in (*workers, broker):
            command.stop()


def _assert_undisturbed(run: Run, alone: Run) -> None:
    """The losses are those of a run that did not move."""
    assert alone.command.code() == 0
    expected = [row["loss"] for row in alone.rows]
    assert [row["loss"] for row in run.rows] == pytest.approx(expected, abs=1e-5)

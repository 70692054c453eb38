"""Workers that a real Slurm starts: they train, and one of them hands over its share when it is cancelled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import slurm
from tests.support.processes import Machines, eventually, machines, train

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not slurm.is_here(), reason=slurm.ABSENT),
]

SHARES = ["--workers", "2", "--memory", "1", "--cpus", "1", "--disk", "1"]


def launch(place: Machines, cluster: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `farflung launch slurm` on the broker's machine, which is the cluster's login node, too."""
    return subprocess.run(
        [sys.executable, "-m", "farflung", "launch", "slurm", place.address, *SHARES, *arguments],
        env={**place.environment("hub"), **cluster},
        cwd=place.folder,
        capture_output=True,
        text=True,
    )


def logs(place: Machines) -> str:
    """What all workers of the array have said."""
    return "".join(path.read_text() for path in sorted(place.folder.glob("farflung-workers-*.log")))


def test_workers_of_a_job_array_train_and_one_leaves_when_it_is_cancelled(tmp_path: Path) -> None:
    with slurm.cluster(tmp_path / "slurm") as cluster, machines(tmp_path) as place:
        broker = place.broker()
        place.document("desk", "status", "--broker", place.address, "--token", place.token("submitter"))
        done = launch(place, cluster, "--site", "the attic's cluster", "--submit")
        assert done.returncode == 0, done.stderr
        assert "made a token for 4 uses" in done.stderr and "Submitted batch job" in done.stdout
        number = done.stdout.split()[-1]
        eventually("two workers", lambda: len(place.status()["backup_pool"]) == 2, 0.4)
        workers = place.status()["workers"]
        assert {worker["site"] for worker in workers} == {"the attic's cluster"}, logs(place)
        assert "--temporary" in place.command_lines() and "ff1-" not in place.command_lines()

        run = train(place, "run", "--workers", "2")
        run.reaches(3)
        assert len(run.workers) == 2
        subprocess.run(["scancel", f"{number}_1"], env={**os.environ, **cluster}, check=True)
        eventually("one has left", lambda: set(slurm.jobs(cluster)) == {f"{number}_2"}, 0.4)
        (left,) = (place.folder / path for path in place.folder.glob(f"farflung-workers-{number}_1.log"))
        assert "it left in good order" in left.read_text()
        run.reaches(len(run.rows) + 3)
        run.stops()
        assert "leaves in good order" in run.ends_an_attempt()

        subprocess.run(["scancel", number], env={**os.environ, **cluster}, check=True)
        eventually("all have left", lambda: not slurm.jobs(cluster), 0.4)
        assert "Traceback" not in logs(place)
        broker.stop()

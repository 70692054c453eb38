"""A disk that fills under copies of a job's state: the job says that it has no newer copy, and trains on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.processes import Machines, Run, eventually, machines, train

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None,
        reason="a small file system of its own needs Linux, root and mount",
    ),
]

DISK_BYTES = 512 * 1024
"""The disk of one worker: room for some versions of the job's state, which takes a few KB."""


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of `DISK_BYTES` at a folder."""
    folder.mkdir(parents=True, mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> None:
    """Use the last byte of a disk."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))


def protection(on: Machines) -> str:
    return str(on.status()["jobs"][-1]["protection"])


def goes_on(run: Run, steps: int) -> None:
    """Wait for some more steps."""
    run.reaches(len(run.rows) + steps)


def test_a_full_disk_costs_newer_copies_only_and_the_job_says_so_and_trains_on(tmp_path: Path) -> None:
    with machines(tmp_path) as on, small_disk(tmp_path / "a" / "worker" / "copies") as disk:
        broker = on.broker()
        token = on.token("worker", "--uses", "2")
        where = [on.address, "--listen", on.listen, "--token", token, "--disk", "1"]
        workers = [on.start(name, "join", *where, "--name", name) for name in ("a", "b")]
        for worker in workers:
            worker.says("idle in the backup pool")
        submitter = ["--token", on.token("submitter"), "--broker", on.address]
        run = train(on, "run", "--workers", "2", *submitter)
        run.reaches(3)
        eventually("protected", lambda: protection(on).startswith("protected up to step "), 0.4)

        def is_full() -> bool:
            fill(disk)  # also what a deleted older copy has left
            return "the disk is full" in protection(on)

        eventually("it says so", is_full, 0.1)
        goes_on(run, 10)
        assert not run.events("rolled back") and not run.events("regrouping")
        assert protection(on).startswith("protected up to step ")  # of the copies from before
        run.command.stop()
        for command in (*workers, broker):
            command.stop()

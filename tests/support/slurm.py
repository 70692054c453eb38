"""A real Slurm cluster of one node on loopback, by munged, slurmctld and slurmd of the distribution."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import held_port

ABSENT = "no Slurm for root here: apt install slurmctld slurmd slurm-client munge"
DEADLINE_SECONDS = 60.0

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
KillWait=120
MailProg=/bin/true
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=64000
PartitionName=all Nodes=ALL Default=YES State=UP
"""
"""It says of the node that it has more than this machine may have: workers of tests are small."""


def is_here() -> bool:
    """Whether a cluster can be started."""
    return os.geteuid() == 0 and all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch")))


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """A cluster for one block: the environment variables by which commands find it.

    A job has 120 s from `scancel` to its end. Jobs that still run when the block ends are killed.
    """
    for part in ("state", "spool"):
        (folder / part).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    with held_port() as controller, held_port() as node:
        host = socket.gethostname().split(".")[0]
        text = _CONFIGURATION.format(host=host, folder=folder, controller=controller, node=node)
        (folder / "slurm.conf").write_text(text)
        daemons = [_daemon(folder, environment, *words) for words in _commands(folder)]
        try:
            _until_ready(environment, folder)
            yield environment
        finally:
            _slurm(environment, "scancel", "--user=root", "--signal=KILL", "--full")
            for daemon in reversed(daemons):
                daemon.terminate()
                daemon.wait(DEADLINE_SECONDS)


def jobs(environment: dict[str, str]) -> dict[str, str]:
    """The state of each job of the queue, such as RUNNING, by its number, such as `1_2`."""
    lines = _slurm(environment, "squeue", "--noheader", "--array", "--format=%i %T").stdout.splitlines()
    return {words[0]: words[1] for line in lines if len(words := line.split()) == 2}


def _commands(folder: Path) -> list[list[str]]:
    files = [
        f"--{kind}={folder}/munge.{end}"
        for kind, end in (
            ("socket", "socket"),
            ("pid-file", "pid"),
            ("log-file", "log"),
            ("seed-file", "seed"),
        )
    ]
    munged = [
        "munged",
        "--foreground",
        "--force",
        "--num-threads=1",
        f"--key-file={folder}/munge.key",
        *files,
    ]
    return [munged, ["slurmctld", "-D", "-c"], ["slurmd", "-D", "-c"]]


def _daemon(folder: Path, environment: dict[str, str], *command: str) -> subprocess.Popen[bytes]:
    with (folder / f"{command[0]}.out").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
    if command[0] == "munged":  # the others do not wait for it
        _wait(lambda: (folder / "munge.socket").exists(), folder)
    return process


def _until_ready(environment: dict[str, str], folder: Path) -> None:
    _wait(lambda: "idle" in _slurm(environment, "sinfo", "--noheader", "--format=%t").stdout, folder)


def _wait(holds: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        logs = {path.name: path.read_text(errors="replace")[-2000:] for path in folder.glob("*.out")}
        assert time.monotonic() < end, logs
        time.sleep(0.1)


def _slurm(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )

"""Workers that `farflung launch ssh` starts through a real sshd on loopback train, and leave when asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.ports import held_port
from tests.support.processes import Machines, eventually, machines, train

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
HOSTS = ("127.0.0.1", "localhost")

pytestmark = [
    pytest.mark.processes,
    pytest.mark.full,
    pytest.mark.skipif(
        os.geteuid() != 0 or not Path(SSHD).exists() or shutil.which("ssh") is None,
        reason="no sshd for root here: apt install openssh-server openssh-client",
    ),
]

_CONFIGURATION = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/sshd.pid
StrictModes no
PermitRootLogin yes
UsePAM no
SetEnv {variables}
"""


@contextmanager
def server(folder: Path, variables: dict[str, str]) -> Iterator[str]:
    """A server for one block, whose sessions have these variables: the options with which ssh reaches it."""
    folder.mkdir()
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd, started as root, locks itself in
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with held_port() as port:
        pairs = " ".join(f'"{name}={value}"' for name, value in variables.items())
        (folder / "sshd_config").write_text(_CONFIGURATION.format(port=port, folder=folder, variables=pairs))
        log = folder / "log"
        daemon = subprocess.Popen([SSHD, "-D", "-f", folder / "sshd_config", "-E", log])
        try:
            eventually("sshd listens", lambda: log.exists() and "listening" in log.read_text())
            known = f"-o StrictHostKeyChecking=no -o UserKnownHostsFile={folder}/known"
            yield f"-p {port} -F none -o LogLevel=ERROR -i {folder}/key -o IdentitiesOnly=yes {known}"
        finally:
            daemon.terminate()
            daemon.wait()


def launch(place: Machines, options: str, *arguments: str) -> Path:
    """Write the script for both hosts, on the broker's machine."""
    script = place.folder / "workers.sh"
    program = place.folder / "far flung"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m farflung "$@"\n')
    program.chmod(0o755)
    sizes = ["--memory", "1", "--disk", "1", "--cpus", "1", "--program", str(program)]
    done = place.start(
        "hub",
        "launch",
        "ssh",
        place.address,
        *HOSTS,
        *sizes,
        "--ssh",
        options,
        "--output",
        str(script),
        *arguments,
    )
    assert done.code() == 0, done.err
    return script


def run(place: Machines, script: Path, *arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
    """Run the script as a user does."""
    variables = {**place.environment("hub"), **({"FARFLUNG_TOKEN": token} if token else {})}
    return subprocess.run(["sh", script, *arguments], env=variables, capture_output=True, text=True)


def test_workers_on_two_hosts_train_and_leave(tmp_path: Path) -> None:
    with machines(tmp_path) as place:
        home = tmp_path / "home of the hosts"
        home.mkdir()
        inherited = {name: place.environment("hosts")[name] for name in ("TMPDIR", "FARFLUNG_TEST_MARK")}
        path = os.environ.get("PYTHONPATH", "")
        variables = {**inherited, "HOME": str(home), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        with server(tmp_path / "sshd", variables) as options:
            broker = place.broker()
            place.document("desk", "status", "--broker", place.address, "--token", place.token("submitter"))
            script = launch(place, options, "--site", "here; exit 1")
            refused = run(place, script, token="ff1-x")
            assert refused.returncode == 1 and "the token has" in refused.stderr, refused.stderr

            started = run(place, script, token=place.token("worker", "--uses", "2"))
            assert started.returncode == 0, started.stderr
            assert started.stderr.count("log is") + started.stderr.count("see ") == 2, started.stderr
            eventually("two workers", lambda: len(place.status()["backup_pool"]) == 2, 0.4)
            assert {worker["site"] for worker in place.status()["workers"]} == {"here; exit 1"}
            assert run(place, script).stderr.count("runs already") == 2
            assert "--folder=" in place.command_lines() and "ff1-" not in place.command_lines()

            trained = train(place, "run", "--workers", "2")
            trained.reaches(2)
            assert run(place, script, "stop").stderr.count("leaves") == 2
            trained.stops()
            eventually(
                "none is left", lambda: run(place, script, "stop").stderr.count("no worker runs") == 2, 0.4
            )
            logs = [path.read_text() for path in home.glob(".farflung/farflung-workers/*/log")]
            assert len(logs) == 2 and all("leav" in log and "Traceback" not in log for log in logs)
        broker.stop()

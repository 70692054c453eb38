"""Faults of every kind, at seeded moments of real runs, change no bit of what is trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from benchmarks.chaos.__main__ import main
from tests.support.processes import eventually

from farflung.errors import LabError
from farflung.lab.machine import check_machine

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.lab, pytest.mark.faults]

HELD = """
import subprocess, time
from pathlib import Path
from benchmarks.chaos.place import Place
from farflung.lab.spec import LabSpec, Node
with Place(LabSpec((Node("w0"),)), ["w0"], None) as place:
    (place.home("w0") / "file").write_text("kept in memory")
    sleeper = subprocess.Popen([*place.prefix("w0"), "sleep", "1000"])
    while Path(f"/proc/{sleeper.pid}/comm").read_text() != "sleep\\n":  # until it has entered the namespaces
        time.sleep(0.01)
    print(place.folder, place.network.namespace("w0"), sleeper.pid, flush=True)
    time.sleep(1000)
"""


@pytest.fixture(scope="module", autouse=True)
def lab_machine() -> None:
    try:
        check_machine(needs_nft=True)
    except LabError as error:
        pytest.skip(str(error))


def test_ten_faults_change_no_bit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = ["--faults", "10", "--per-job", "10", "--seed", "3", "--json", "--folder", str(tmp_path)]
    assert main(given) == 0
    document = json.loads(capfd.readouterr().out)
    (job,) = document["jobs"]
    assert job["sha256"] == job["undisturbed_sha256"] and job["codec"] != "dense"
    assert document["counted"] >= 10 and len(document["recovery_seconds"]) >= 5
    assert document["replays"] + document["rollbacks"] > 0
    assert not job["died"]


def test_nothing_stays_behind_when_the_program_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HELD], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert process.stdout is not None
    folder, namespace, sleeper = process.stdout.readline().decode().split()
    assert Path(folder).is_dir() and psutil.pid_exists(int(sleeper))
    assert folder not in Path("/proc/mounts").read_text()  # seen by the processes of the run alone
    process.kill()
    process.wait()
    process.stdout.close()  # not read to its end: what stays behind may hold it, and is looked for below
    eventually("its process ends", lambda: not psutil.pid_exists(int(sleeper)))
    eventually("its network is removed", lambda: not Path("/run/netns", namespace).exists())
    eventually("its files are removed", lambda: not Path(folder).exists())

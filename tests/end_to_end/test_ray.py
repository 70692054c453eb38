"""Workers that `farflung launch ray` runs on a real Ray of this machine train, and leave when asked."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.support.processes import DEADLINE_SECONDS, eventually, machines, train

pytestmark = [
    pytest.mark.processes,
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no Ray here: pip install ray"),
]


def test_actors_train_and_leave_when_the_driver_is_stopped(tmp_path: Path) -> None:
    with machines(tmp_path) as place, tempfile.TemporaryDirectory(prefix="r") as short:
        broker = place.broker()
        place.document("desk", "status", "--broker", place.address, "--token", place.token("submitter"))
        script, log = tmp_path / "workers.py", tmp_path / "driver.log"
        sizes = ["--workers", "2", "--memory", "1", "--disk", "1", "--site", "'''rays'''"]
        written = place.start(
            "hub", "launch", "ray", place.address, *sizes, "--address", "local", "--output", str(script)
        )
        assert written.code() == 0, written.err
        environment = {
            **place.environment("hub"),
            "FARFLUNG_TOKEN": place.token("worker", "--uses", "2"),
            "RAY_TMPDIR": short,  # its sockets' names may have 107 characters
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_worker_niceness": "0",  # else any other work of this machine goes before its own
            "RAY_AUTH_MODE": "disabled",  # else it writes a token of its own into the user's home
        }
        with log.open("wb") as out:
            driver = subprocess.Popen([sys.executable, script], env=environment, stdout=out, stderr=out)
        try:
            eventually(
                f"two workers: {log}",
                lambda: driver.poll() is not None or len(place.status()["backup_pool"]) == 2,
                0.4,
            )
            assert driver.poll() is None, log.read_text()
            assert {worker["site"] for worker in place.status()["workers"]} == {"'''rays'''"}
            assert environment["FARFLUNG_TOKEN"] not in script.read_text() + log.read_text()
            assert "--temporary" in place.command_lines() and "ff1-" not in place.command_lines()
            run = train(place, "run", "--workers", "2")
            run.reaches(2)
            run.stops()
            driver.send_signal(signal.SIGTERM)
            assert driver.wait(DEADLINE_SECONDS) == 0, log.read_text()
            assert "Traceback" not in log.read_text()
            left = [worker["state"] for worker in place.status()["workers"]]
            assert left == ["left", "left"], log.read_text()
        finally:
            driver.terminate()  # one that has ended is left alone; Ray's own processes outlive a kill
            driver.wait(DEADLINE_SECONDS)
        broker.stop()
        eventually("Ray's processes have ended", lambda: not place.orphans())

"""The README's path to several machines: separate processes, each with its own folder, by commands alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.ports import held_port
from tests.support.processes import eventually

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DEADLINE_SECONDS = 120.0

JOB = """
import torch
import farflung
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, y):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(x, y)


class Items:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.sin(torch.arange(8.0) + index)
        return {"x": x, "y": x.flip(0)}


def job():
    torch.manual_seed(1)
    return farflung.Job(model=Net(), data=Items(), validation=Items(), optimizer=farflung.AdamW(lr=1e-2),
                        batch=8, microbatches=4, steps=5)
"""


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "FARFLUNG_HOME": str(home), "OMP_NUM_THREADS": "1"}


def farflung(home: Path, *arguments: str) -> str:
    """Run a command to its end as on a machine whose home is `home`; what it printed."""
    command = [sys.executable, "-m", "farflung", *arguments]
    done = subprocess.run(
        command, env=environment(home), capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def serving(home: Path, *arguments: str, says: str) -> Iterator[None]:
    """A long-running command on such a machine, once it `says` that it is there; it must end well when it is
    interrupted.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / "log").open("w") as log:
        command = [sys.executable, "-m", "farflung", *arguments]
        process = subprocess.Popen(command, env=environment(home), stdout=log, stderr=log)
        try:
            eventually(f"it says {says}", lambda: said(home, says) or process.poll() is not None)
            yield
            assert process.poll() is None, (home / "log").read_text()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(DEADLINE_SECONDS)
        assert "Traceback" not in (home / "log").read_text()


def said(home: Path, words: str) -> bool:
    return words in (home / "log").read_text()


def test_a_broker_two_workers_and_a_submitter_meet_by_tokens_alone(tmp_path: Path) -> None:
    machines = {name: tmp_path / name for name in ("hub", "lab", "home", "desk")}
    job = tmp_path / "net.py"
    job.write_text(JOB)
    with ExitStack() as stack:
        address = f"127.0.0.1:{stack.enter_context(held_port())}"
        stack.enter_context(serving(machines["hub"], "broker", "--listen", address, says="listens on"))
        worker_token = farflung(machines["hub"], "token", "create", "--role", "worker", "--uses", "2").strip()
        submitter_token = farflung(machines["hub"], "token", "create", "--role", "submitter").strip()
        for name in ("lab", "home"):
            arguments = ["join", address, "--token", worker_token, "--name", name, "--site", name]
            arguments += ["--listen", "127.0.0.1:0"]
            stack.enter_context(serving(machines[name], *arguments, says="idle in the backup pool"))
        train = ["train", str(job), "--workers", "2", "--json"]
        first = farflung(
            machines["desk"], *train, "--broker", address, "--token", submitter_token,
            "--out", str(tmp_path / "first"),
        )  # fmt: skip
        again = farflung(machines["desk"], *train, "--broker", address, "--out", str(tmp_path / "again"))
        status = json.loads(farflung(machines["desk"], "status", "--json"))
        doctor = farflung(machines["desk"], "doctor")
    assert json.loads(first)["state"] == json.loads(again)["state"] == "done"
    assert _losses(tmp_path / "first") == _losses(tmp_path / "again")
    plan = json.loads((tmp_path / "first" / "plan.json").read_text())
    assert sorted(worker for p in plan["placements"] for worker in p["workers"]) == ["home", "lab"]
    assert sorted(status["backup_pool"]) == ["home", "lab"]
    assert {worker["site"] for worker in status["workers"]} == {"home", "lab"}
    assert [job["state"] for job in status["jobs"]] == ["done", "done"]
    assert address in doctor
    for name in ("summary.json", "events.jsonl", "model.safetensors"):
        assert (tmp_path / "first" / name).stat().st_size > 0


def _losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]

"""The commands as a user types them: separate processes, separate folders, real TLS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

JOB = """
import torch, farflung
from torch import nn

class Items:
    def __init__(self):
        self.x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.x[index].roll(1)}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(8, 8), nn.Tanh())])
    def forward(self, x, y):
        return ((self.layers(x) - y) ** 2).mean()

def sample(model):
    assert not model.training
    return "SAMPLE"

def job():
    torch.manual_seed(0)
    return farflung.Job(model=Model(), data=Items(), optimizer=farflung.SGD(lr=0.1), batch=4,
                        microbatches=2, steps=3, sample=sample)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `farflung` commands, each with a home of its own; ends what still runs."""
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "chain.py").write_text(JOB)

    def start(home: str, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "FARFLUNG_HOME": str(tmp_path / home), "OMP_NUM_THREADS": "1"}
        environment.pop("FARFLUNG_TOKEN", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "farflung", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


Start = Callable[..., subprocess.Popen[str]]


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def document(process: subprocess.Popen[str]) -> Any:
    code, out, err = finish(process)
    assert code == 0, err
    return json.loads(out)


def listening_address(broker: subprocess.Popen[str]) -> str:
    assert broker.stdout is not None
    for line in broker.stdout:
        words = json.loads(line)["message"].split()
        if "listens" in words:
            return str(words[words.index("on") + 1])
    raise AssertionError("the broker never listened")


@pytest.mark.full  # tests/end_to_end/test_machines.py does the same with tokens alone
def test_several_machines_train_together(machine: Start, tmp_path: Path) -> None:
    broker = machine("b", "broker", "--listen", "127.0.0.1:0", "--json")
    address = listening_address(broker)
    made = {
        role: document(machine("b", "token", "create", "--role", role, "--uses", "2", "--json"))
        for role in ("worker", "submitter", "viewer")
    }
    assert all(token["broker"] == [address] for token in made.values())
    tokens = {role: token["token"] for role, token in made.items()}
    workers = [
        machine(
            f"w{n}",
            "join",
            address,
            "--token",
            tokens["worker"],
            "--listen",
            "127.0.0.1:0",
            "--name",
            f"w{n}",
        )
        for n in range(2)
    ]
    # `train` waits for the workers by itself; the token is needed once, then the folder is enough.
    first = machine(
        "s",
        "train",
        "chain.py",
        "--broker",
        address,
        "--token",
        tokens["submitter"],
        "--workers",
        "2",
        "--json",
    )
    summary = document(first)
    assert (summary["state"], summary["steps"], summary["workers"]) == ("done", 3, 2)
    assert (tmp_path / "runs" / "chain" / "model.safetensors").exists()
    again = document(machine("s", "train", "chain.py", "--json", "--steps", "2", "--workers", "2"))
    assert (again["state"], again["steps"], again["workers"]) == ("done", 2, 2)
    assert (tmp_path / "runs" / "chain.1" / "summary.json").exists()

    status = document(machine("v", "status", "--broker", address, "--token", tokens["viewer"], "--json"))
    assert [(worker["worker"], worker["state"]) for worker in status["workers"]] == [
        ("w0", "ready"),
        ("w1", "ready"),
    ]
    assert [job["state"] for job in status["jobs"]] == ["done", "done"]
    assert status["backup_pool"] == ["w0", "w1"]
    code, out, _ = finish(machine("s", "status"))
    assert code == 0 and "w0" in out and "2 ready" in out

    doctor = document(machine("s", "doctor", "--json"))
    assert doctor["ok"] and {"clock", "broker", "reach"} <= {entry["check"] for entry in doctor["findings"]}

    for process in [*workers, broker]:
        process.terminate()
        code, _, err = finish(process)
        assert code == 0 and "Traceback" not in err
    code, out, _ = finish(machine("s", "doctor"))
    assert code == 1 and "FAIL  reach" in out and "helps: " in out
    code, out, err = finish(machine("s", "status", "--json"))
    assert code == 2 and "refused the connection" in json.loads(out)["error"] and err.count("\n") == 1
    # A broker that is not there costs no capture.
    code, out, err = finish(machine("s", "train", "chain.py"))
    assert code == 2 and "refused the connection" in err and "capturing" not in err


def test_train_local_ends_with_a_sample_of_the_loaded_weights(machine: Start, tmp_path: Path) -> None:
    code, out, err = finish(machine("s", "train", "chain.py", "--local", "2", "--out", "run"))
    assert (code, out) == (0, "SAMPLE\n"), err
    assert "segment 0 on worker-" in err and "step 3/3" in err
    names = {path.name for path in (tmp_path / "run").iterdir()} - {"checkpoints"}
    assert names == {
        "run.json",
        "metrics.jsonl",
        "events.jsonl",
        "plan.json",
        "summary.json",
        "model.safetensors",
        "logs",
    }
    assert {path.name for path in (tmp_path / "run" / "logs").iterdir()} == {
        "broker.log",
        "worker-0.log",
        "worker-1.log",
    }


@pytest.mark.full
def test_inner_steps_let_replicas_train_apart_and_stay_when_resumed(machine: Start, tmp_path: Path) -> None:
    """The job file says nothing of it."""

    def merges() -> list[int]:
        events = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
        return [event["step"] for event in events if event["event"] == "merged"]

    asked = ["--local", "2", "--replicas", "2", "--inner-steps", "2", "--steps", "4", "--out", "run"]
    code, _, err = finish(machine("s", "train", "chain.py", *asked))
    assert code == 0 and merges() == [2, 4], err
    code, _, err = finish(machine("s", "train", "chain.py", "--resume", "run", "--steps", "7"))
    assert code == 0 and merges() == [2, 4, 6, 7], err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["options"]["inner_steps"] == 2


# Twice, in tests/end_to_end/test_faults.py: test_ctrl_c_at_a_terminal_ends_a_local_run_in_order.
@pytest.mark.full
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.full)])
def test_ctrl_c_ends_a_run(machine: Start, tmp_path: Path, times: int) -> None:
    process = machine("s", "train", "chain.py", "--local", "2", "--out", "run", "--steps", "1000000")
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and '"loss":' in metrics.read_text()) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130 and "Traceback" not in err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["state"] == "cancelled"
    if times == 1:
        assert "error" not in err and f"stopped by the user after {summary['steps']} step" in err
        assert summary["weights_step"] == summary["steps"] == metrics.read_text().count('"loss":')
        assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.full
def test_check_and_capture_say_what_they_found(machine: Start) -> None:
    report = document(machine("s", "check", "chain.py", "--segments", "3", "--json"))
    assert report["ok"] and report["segments"] == 3 and report["cut_bytes"] > 0
    captured = document(machine("s", "capture", "chain.py", "--profile", "device.json", "--json"))
    assert captured["profile"]["path"] == "device.json" and captured["profile"]["tflops"] > 0
    assert captured["parameters"] == 5 * (8 * 8 + 8) and captured["operators"]["aten.tanh.default"] == 5

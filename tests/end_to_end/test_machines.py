"""The README's path to several machines: separate processes, each with its own folder, by commands alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.processes import machines

pytestmark = [pytest.mark.processes, pytest.mark.slow]

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


def test_a_broker_two_workers_and_a_submitter_meet_by_tokens_alone(tmp_path: Path) -> None:
    with machines(tmp_path) as on:
        (tmp_path / "net.py").write_text(JOB)
        broker, token = on.broker(), on.token("worker", "--uses", "2")
        workers = [
            on.start(
                name, "join", on.address, "--token", token, "--name", name, "--site", name,
                "--listen", on.listen,
            )
            for name in ("lab", "home")
        ]  # fmt: skip
        for worker in workers:
            worker.says("idle in the backup pool")
        train = ["train", "net.py", "--workers", "2"]
        where = ["--broker", on.address, "--token", on.token("submitter")]
        first = on.document("desk", *train, *where, "--out", "first")
        again = on.document("desk", *train, "--broker", on.address, "--out", "again")
        status = on.status()
        doctor = on.start("desk", "doctor")
        assert doctor.code() == 0 and on.address in doctor.out
        for command in (*workers, broker):
            command.stop()
    assert first["state"] == again["state"] == "done"
    assert _losses(tmp_path / "first") == _losses(tmp_path / "again")
    plan = json.loads((tmp_path / "first" / "plan.json").read_text())
    assert sorted(worker for p in plan["placements"] for worker in p["workers"]) == ["home", "lab"]
    assert sorted(status["backup_pool"]) == ["home", "lab"]
    assert {worker["site"] for worker in status["workers"]} == {"home", "lab"}
    assert [job["state"] for job in status["jobs"]] == ["done", "done"]
    for name in ("summary.json", "events.jsonl", "model.safetensors"):
        assert (tmp_path / "first" / name).stat().st_size > 0


def _losses(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]

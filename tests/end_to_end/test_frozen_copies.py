"""Weights that a job does not train go to each disk once, and a worker still returns with its disk."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.support.processes import Machines, Run, eventually, machines, train

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]

STEPS = 60
FROZEN_BYTES = 4 * 2 * (8192 * 32)
"""Of the frozen matrices of one worker."""

JOB = """
import time
import torch
import farflung
from torch import nn


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Sequential(nn.Linear(32, 8192, bias=False), nn.Linear(8192, 32, bias=False))
        self.frozen.requires_grad_(False)
        self.trained = nn.Linear(32, 4)
        self.back = nn.Linear(4, 32)

    def forward(self, x):
        return torch.tanh(self.frozen(x) + self.back(self.trained(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(2))

    def forward(self, x, y):
        for part in self.parts:
            x = part(x)
        return nn.functional.mse_loss(x, y)


class Items:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.005)
        x = torch.sin(torch.arange(32.0) + index)
        return {"x": x, "y": x.flip(0)}


def job():
    torch.manual_seed(1)
    return farflung.Job(model=Net(), data=Items(), optimizer=farflung.AdamW(lr=1e-2),
                        batch=8, microbatches=4, steps=1_000_000)
"""


def files(on: Machines, worker: str, pattern: str) -> list[Path]:
    return sorted((on.folder / worker / "worker" / "copies").glob(f"*/{pattern}"))


def start(on: Machines, name: str, *arguments: str) -> Run:
    return train(
        on, name, "--on", "a,b", "--workers", "0", "--steps", str(STEPS), *arguments, job="frozen.py"
    )


@pytest.mark.full
def test_a_worker_returns_with_its_disk_and_no_version_but_the_first_has_the_frozen_weights(
    tmp_path: Path,
) -> None:
    with machines(tmp_path) as on:
        (tmp_path / "frozen.py").write_text(JOB)
        broker, token = on.broker(), on.token("worker", "--uses", "2")
        workers = {name: on.worker(name, token) for name in "ab"}
        for worker in workers.values():
            worker.says("idle in the backup pool")
        undisturbed = start(on, "undisturbed", "--token", on.token("submitter"), "--broker", on.address)
        assert undisturbed.command.code() == 0, undisturbed.command.err
        run = start(on, "disturbed")

        def second_version() -> bool:
            """Whether both workers have copies of two shares, none of the first unit."""
            units = [
                [int(path.name.split("-")[1]) for path in files(on, name, "[0-9]*.safetensors")]
                for name in "ab"
            ]
            return all(len(of_one) >= 2 and min(of_one) > 0 for of_one in units)

        eventually("a second version", second_version)
        copies = {name: files(on, name, "[0-9]*.safetensors") for name in "ab"}
        bases = {name: files(on, name, "base-*.safetensors") for name in "ab"}
        for name in "ab":
            assert len(bases[name]) == 2  # its own share's, and that of the share that it holds
            sizes = [path.stat().st_size for path in copies[name] if path.exists()]
            assert all(path.stat().st_size > FROZEN_BYTES for path in bases[name])
            assert all(size < FROZEN_BYTES / 100 for size in sizes)
        workers["b"].signal(signal.SIGKILL)
        workers["b"].code()
        workers["b"] = on.worker("b")
        assert run.command.code() == 0, run.command.err
        assert [row["loss"] for row in run.rows] == [row["loss"] for row in undisturbed.rows]
        assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
        (taken,) = run.events("regrouping")
        assert taken["replayers"] == ["b"] and not run.events("rolled back")
        sent = sum(row["bytes_copied"] or 0 for row in run.rows)
        assert 2 * FROZEN_BYTES < sent < 3 * FROZEN_BYTES  # each base once, also after the return
        assert (run.folder / "model.safetensors").read_bytes() == (
            undisturbed.folder / "model.safetensors"
        ).read_bytes()
        eventually("no copy stays", lambda: not any(files(on, name, "*") for name in "ab"))
        for command in (*workers.values(), broker):
            command.stop()

"""Workers keep base weights on their disks: a second job on the same base is not sent them again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.processes import Machines, Run, eventually, machines, train

pytestmark = [pytest.mark.processes, pytest.mark.slow]

JOB = """
import torch
import farflung
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.head = nn.Linear(64, 1)
        self.layers.requires_grad_(False)

    def forward(self, x, y):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(self.head(x), y)


class Items:
    def __len__(self):
        return 16

    def __getitem__(self, index):
        x = torch.sin(torch.arange(64.0) + index)
        return {"x": x, "y": x[:1]}


def job():
    torch.manual_seed(1)
    return farflung.Job(model=Net(), data=Items(), optimizer=farflung.SGD(lr=1e-2),
                        batch=8, microbatches=4, steps=2)
"""
BASE_BYTES = 4 * 64 * 64 * 4
"""The weights of the frozen layers; their biases are too small to be named."""


@pytest.fixture
def two_workers(tmp_path: Path) -> Iterator[Machines]:
    with machines(tmp_path) as on:
        (tmp_path / "frozen.py").write_text(JOB)
        broker = on.broker()
        token = on.token("worker", "--uses", "2")
        workers = [on.worker(name, token) for name in ("a", "b")]
        for worker in workers:
            worker.says("idle in the backup pool")
        yield on
        for command in (*workers, broker):
            command.stop()


def run(on: Machines, name: str, token: str | None = None) -> Run:
    """Train on both workers to the end."""
    options = ["--workers", "2", "--broker", on.address, *(["--token", token] if token else [])]
    found = train(on, name, *options, job="frozen.py")
    assert found.command.code() == 0, found.command.err
    return found


def loaded(of: Run) -> tuple[int, int]:
    (event,) = of.events("running")
    return event["base_cached_bytes"], event["base_sent_bytes"]


def files(on: Machines) -> list[Path]:
    """The cached tensors, once they have been written."""
    found: list[Path] = []

    def is_written() -> bool:
        found[:] = sorted(on.folder.glob("[ab]/worker/weights/*"))
        return len(found) == 4 and not any(path.suffix for path in found)

    eventually("the base weights are on the disks", is_written)
    return found


def test_a_second_job_on_the_same_base_sends_no_base_weights(two_workers: Machines) -> None:
    on = two_workers
    first = run(on, "first", on.token("submitter"))
    assert loaded(first) == (0, BASE_BYTES)
    assert "caches" not in first.command.err
    files(on)
    second = run(on, "second")
    assert loaded(second) == (BASE_BYTES, 0)
    assert "65.5 kB of base weights were in the workers' caches" in second.command.err
    assert second.summary["loading_bytes"] < first.summary["loading_bytes"] - BASE_BYTES
    assert [row["loss"] for row in second.rows] == [row["loss"] for row in first.rows]
    damaged = files(on)[0]
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    third = run(on, "third")
    assert loaded(third) == (BASE_BYTES * 3 // 4, BASE_BYTES // 4)
    assert [row["loss"] for row in third.rows] == [row["loss"] for row in first.rows]
    eventually("it is written anew", lambda: damaged in files(on) and damaged.read_bytes() != content)

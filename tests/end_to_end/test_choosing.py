"""Codecs that are chosen while a job runs: real workers in a lab whose link changes under them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.homes import homes
from tests.support.processes import Run, train

from farflung.errors import LabError
from farflung.lab.network import check_machine
from farflung.lab.spec import LinkSettings, Node
from farflung.plans.codec_policy import LADDER

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.lab]

FAST_MBPS, SLOW_MBPS = 100.0, 6.0
SETTLED, WITHIN = 8, 10
JOB = """
import torch
import farflung
from torch import nn

WIDTH = 1024


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rise = nn.Parameter(torch.randn(WIDTH) / 8)
        self.middle = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.fall = nn.Linear(WIDTH, 1)

    def forward(self, x, y):
        h = torch.tanh(x * self.rise)
        for layer in self.middle:
            h = h + torch.tanh(layer(h))
        return nn.functional.mse_loss(self.fall(h), y)


class Items:
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        x = torch.tensor([index / 4096])
        return {"x": x, "y": torch.sin(9 * x)}


def job():
    torch.manual_seed(1)
    return farflung.Job(model=Net(), data=Items(), optimizer=farflung.AdamW(lr=1e-4),
                        batch=512, microbatches=4, steps=1_000_000, codec="auto", max_loss_gap=0.02)
"""
"""Half a megabyte of float32 crosses the cut each way for each microbatch."""


def events(run: Run, kind: str) -> list[dict[str, Any]]:
    """What `events.jsonl` has of one kind."""
    lines = (run.folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.full
def test_a_link_that_gets_slow_is_written_rougher_within_ten_steps_by_all_workers(tmp_path: Path) -> None:
    try:
        check_machine()
    except LabError as error:
        pytest.skip(str(error))
    line = LinkSettings(bandwidth_mbps=FAST_MBPS, latency_ms=5.0)
    with homes(tmp_path, Node("a"), Node("b"), line=line) as at:
        (tmp_path / "wide.py").write_text(JOB)
        broker = at.broker("--no-survey")
        workers = [at.worker(name) for name in ("a", "b")]
        for worker in workers:
            worker.says("registered", "idle in the backup pool")
        joins = ["--token", at.on.token("submitter"), "--broker", at.on.address]
        run = train(at.on, "run", "--steps", "60", "--workers", "2", *joins, job="wide.py")
        run.reaches(SETTLED)
        for one, other in (("a", "b"), ("b", "a")):
            at.network.set(one, other, bandwidth_mbps=SLOW_MBPS)
        since = len(run.rows)
        run.reaches(since + WITHIN + 2)
        told = [event for event in events(run, "codecs") if since < event["step"] <= since + WITHIN + 1]
        changes = [change for event in told for change in event["changes"]]
        assert {(change["source"], change["target"]) for change in changes} == {("a", "b"), ("b", "a")}
        for one in changes:
            assert LADDER.index(one["codec"]) > 0 and one["ratio"] > 1
            assert "Mbit/s" in one["reason"]
        (shown,) = (job for job in at.on.status()["jobs"] if job["state"] == "running")
        assert {(c["source"], c["target"]) for c in shown["codecs"]} <= {("a", "b"), ("b", "a")}
        assert shown["codecs"]
        before = [row["bytes_on_wire"] for row in run.rows[2:4]]
        after = run.rows[since + WITHIN + 1]["bytes_on_wire"]
        assert after < min(before) / 2
        assert any("after step" in line and " uses " in line for line in run.command.err.splitlines())
        run.command.stop()
        broker_said = broker.err
        for command in (*workers, broker):
            command.stop()
        assert "changes codecs from unit" in broker_said

"""Replicas that train apart, on two local workers: a program hears each merge."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.end_to_end.zoo_jobs import MICROBATCHES
from tests.localhost.jobs import Normed, Vectors, job
from tests.runtime.test_diloco import plain_loop

import farflung

pytestmark = pytest.mark.processes


class Merges(farflung.Observer):
    """Keeps in which order merges and evaluations came."""

    def __init__(self) -> None:
        self.order: list[tuple[str, int]] = []

    def merged(self, step: int, bytes_sent: int) -> None:
        self.order.append(("merged", step))

    def validated(self, step: int, loss: float | None, metrics: object) -> None:
        self.order.append(("validated", step))


@pytest.mark.full
def test_parameters_are_merged_and_the_first_replica_s_running_statistics_come_home(tmp_path: Path) -> None:
    apart = replace(
        job(steps=6, model=Normed(), microbatches=MICROBATCHES, seed=11),
        optimizer=farflung.AdamW(lr=3e-3),
        sync=farflung.DiLoCo(inner_steps=3),
    )
    _, (first, second) = plain_loop(apart, 2)
    with farflung.local(2, device="cpu") as fleet:
        fleet.train(apart, replicas=2, out=tmp_path / "run").wait()
    home = load_file(tmp_path / "run/model.safetensors")
    assert home.keys() == first.keys()
    assert all(torch.equal(home[name], first[name]) for name in home)
    unlike = {name for name in home if not torch.equal(first[name], second[name])}
    assert unlike == {"norm.running_mean", "norm.running_var"}


@pytest.mark.full
def test_a_program_hears_each_merge(tmp_path: Path) -> None:
    """And the row of an evaluation says whether the replicas were apart."""
    apart = job(steps=6, validation=Vectors(), validate_every=2, sync=farflung.DiLoCo(inner_steps=3))
    heard: list[tuple[int, int]] = []
    observer = Merges()
    with farflung.local(2, device="cpu") as fleet:
        run = fleet.train(
            apart,
            replicas=2,
            out=tmp_path / "run",
            on_merge=lambda step, sent: heard.append((step, sent)),
            observer=observer,
        )
        run.wait()
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    merges = [(one["step"], one["bytes_sent"]) for one in events if one["event"] == "merged"]
    assert heard == merges and [step for step, _ in merges] == [3, 6]
    assert all(sent > 0 for _, sent in heard)
    evaluations = [("validated", step) for step in (0, 2, 4, 6)]
    assert observer.order == [*evaluations[:2], ("merged", 3), evaluations[2], ("merged", 6), evaluations[3]]
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    found = {row["step"]: row["of_first_replica"] for row in rows if "validation_loss" in row}
    assert found == {0: False, 2: True, 4: True, 6: False}

"""Replicas that train apart, on two local workers: a program hears each merge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.localhost.jobs import Vectors, job

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

"""Metrics of evaluations on real workers: the numbers of one process, wherever the model is cut."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import farflung

pytestmark = pytest.mark.processes

CLASSES, ITEMS, MICROBATCH = 5, 30, 4


class Classifier(nn.Module):
    """Layers in a row and scores by class."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores


class Labelled:
    """Random vectors, each with three classes to predict for, some of them masked, unevenly."""

    def __init__(self, items: int = ITEMS) -> None:
        generator = torch.Generator().manual_seed(4)
        self.x = torch.randn(items, 3, 8, generator=generator)
        self.labels = self.x[..., :CLASSES].argmax(-1)
        self.labels[::3, 1:] = -100

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.labels[index]}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())


def confidence(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """A mean over counted targets, as the loss is."""
    counted = (batch["labels"] != -100).float()
    return (outputs.softmax(-1).amax(-1) * counted).sum() / counted.sum()


def job(**changes: Any) -> farflung.Job:
    torch.manual_seed(2)
    fields: dict[str, Any] = {
        "model": Classifier(),
        "data": Labelled(),
        "validation": Labelled(),
        "optimizer": farflung.SGD(lr=0.5),
        "batch": 2 * MICROBATCH,
        "microbatches": 2,
        "steps": 4,
        "loss": loss,
        "counted": "labels",
        "validation_batches": None,
        "metrics": {
            "accuracy": farflung.metrics.accuracy,
            "confidence": confidence,
            "perplexity": farflung.metrics.perplexity,
        },
    }
    return farflung.Job(**{**fields, **changes})


def in_one_process(model: nn.Module) -> dict[str, float]:
    """The metrics over all items of whole microbatches at once."""
    data, used = Labelled(), ITEMS - ITEMS % MICROBATCH
    chosen = farflung.data.spread_indices(ITEMS, used)
    batch = {"x": data.x[chosen], "labels": data.labels[chosen]}
    model.eval()
    with torch.no_grad():
        outputs = model(batch["x"])
        counted = batch["labels"] != -100
        hits = (outputs.argmax(-1) == batch["labels"])[counted]
        return {
            "accuracy": int(hits.sum()) / int(counted.sum()),
            "confidence": confidence(outputs, batch).item(),
            "perplexity": math.exp(loss(outputs, batch).item()),
        }


@pytest.fixture(scope="module", params=[("torch", "torch"), ("torch", "jax")], ids="+".join)
def fleet(request: pytest.FixtureRequest) -> Iterator[farflung.Fleet]:
    with farflung.local(2, backends=request.param, device="cpu") as fleet:
        yield fleet


@pytest.mark.cases(1)
def test_metrics_equal_one_process(fleet: farflung.Fleet, tmp_path: Path) -> None:
    heard: list[tuple[int, dict[str, float]]] = []
    wanted = job()
    before = in_one_process(wanted.model)
    run = fleet.train(
        wanted,
        log="csv",
        out=tmp_path / "run",
        on_validation=lambda step, loss, found: heard.append((step, found)),
    )
    summary = run.wait()
    run.load_into(wanted.model)
    after = in_one_process(wanted.model)
    first, last = run.metrics.validations
    for found, expected in ((first.metrics, before), (last.metrics, after)):
        assert list(found) == list(expected)
        assert found["accuracy"] == expected["accuracy"]  # a quotient of whole numbers
        assert found == pytest.approx(expected, rel=1e-5)
    assert summary.metrics == last.metrics and heard == [(0, first.metrics), (4, last.metrics)]
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    rows = [row for row in lines if "validation_loss" in row]
    logged = (tmp_path / "run/csv/validation.csv").read_text().splitlines()
    assert logged[0] == "step,loss,accuracy,confidence,perplexity" and len(logged) == 1 + len(rows)
    assert [(row["step"], row["metrics"]) for row in rows] == heard and len(lines) == 2 + 4


@pytest.mark.cases(1)
def test_training_is_the_same_with_and_without_metrics(fleet: farflung.Fleet, tmp_path: Path) -> None:
    runs = [
        fleet.train(job(**changes), out=tmp_path / str(number))
        for number, changes in enumerate(({}, {"metrics": None}))
    ]
    for run in runs:
        run.wait()
    measured, plain = runs
    assert [row.loss for row in measured.metrics] == [row.loss for row in plain.metrics]
    assert all(
        torch.equal(tensor, plain.state_dict()[name]) for name, tensor in measured.state_dict().items()
    )

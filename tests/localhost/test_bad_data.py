"""Data that fail in the middle of a run: the steps before have run, and their weights are home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.localhost.jobs import Vectors, item_of_step, job
from torch import Tensor, nn

import farflung
from farflung.errors import RunFailed

pytestmark = pytest.mark.processes

STEPS = 3
"""Those before the one that fails."""


class Classes(Vectors):
    """Random vectors and one of 10 classes for each; item `wrong` has class 99."""

    def __init__(self, wrong: int = -1) -> None:
        super().__init__()
        self.wrong = wrong

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": torch.tensor(99 if index == self.wrong else index % 10)}


class Classifier(nn.Module):
    """Two layers and a cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 10))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), labels)


def made(fails: str, good: bool = False) -> farflung.Job:
    """A job whose step after `STEPS` has an item with a wrong label, or one that cannot be read."""
    item = -1 if good else item_of_step(STEPS)
    if fails == "label":
        torch.manual_seed(1)
        return job(STEPS if good else 100, Classes(item), model=Classifier())
    return job(STEPS if good else 100, Vectors(broken=item), num_workers=4)


@pytest.fixture(scope="module", params=[1, 2])
def fleet(request: pytest.FixtureRequest) -> Iterator[farflung.Fleet]:
    with farflung.local(request.param, device="cpu") as fleet:
        yield fleet


@pytest.mark.cases(1)
@pytest.mark.parametrize("fails", ["label", "item"])
def test_the_steps_before_bad_data_run_and_their_weights_come_home(
    fleet: farflung.Fleet, tmp_path: Path, fails: str
) -> None:
    """On one worker without checkpoints, too: a worker that found the label would lose the weights."""
    run = fleet.train(made(fails), out=tmp_path / "run")
    with pytest.raises(RunFailed) as failed:
        run.wait()
    words, item = str(failed.value), item_of_step(STEPS)
    if fails == "label":
        assert words.startswith(f"data[{item}] contains index 99 in 'labels' where the loss")
        assert "takes 0 to 9" in words
    else:
        assert words.startswith(f"data[{item}] raised OSError: the file is gone")
    assert f"the weights of step {STEPS} are in {run.folder}" in words
    summary = run.summary
    assert summary is not None
    assert (summary.steps, summary.weights_step, summary.checkpoint_step) == (STEPS, STEPS, STEPS)
    good = fleet.train(made(fails, good=True), out=tmp_path / "good")
    good.wait()
    assert [row.loss for row in run.metrics.rows] == [row.loss for row in good.metrics.rows]
    expected = good.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in run.state_dict().items())
    mended = fleet.train(made(fails, good=True), resume=tmp_path / "run", steps=STEPS + 1)
    assert mended.wait().steps == STEPS + 1
    assert [row.step for row in mended.metrics.rows] == [STEPS + 1]

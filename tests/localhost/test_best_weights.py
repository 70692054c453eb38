"""Early stopping and the best weights on real workers: those of a run that ends at that step."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F

import farflung
from farflung.client.output.export import export_weights
from farflung.client.output.records import Best
from farflung.errors import CheckpointError, JobError

pytestmark = pytest.mark.processes

STEPS = 40


class Net(nn.Module):
    """Layers in a row, whose mean squared error is the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.layers(x), y)


def items(target: float) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [{"x": torch.randn(4, generator=generator), "y": torch.full((4,), target)} for _ in range(16)]


def job(**changes: Any) -> farflung.Job:
    """A job whose validation loss falls and then rises, as its targets lie halfway to those of training."""
    torch.manual_seed(5)
    fields: dict[str, Any] = {
        "model": Net(),
        "data": items(1.0),
        "validation": items(0.5),
        "optimizer": farflung.SGD(lr=0.1),
        "batch": 8,
        "microbatches": 2,
        "steps": STEPS,
        "validate_every": 2,
        "name": "net",
    }
    return farflung.Job(**{**fields, **changes})


STOPPING: dict[str, Any] = {"stop_early": farflung.EarlyStopping(patience=3), "keep_best": True}


@pytest.fixture(scope="module")
def fleet() -> Any:
    with farflung.local(2, device="cpu") as fleet:
        yield fleet


@pytest.fixture(scope="module")
def whole(fleet: farflung.Fleet, tmp_path_factory: pytest.TempPathFactory) -> farflung.Run:
    """A run that stops early, on its own."""
    run = fleet.train(job(**STOPPING), out=tmp_path_factory.mktemp("whole") / "run", checkpoint_every=100)
    run.wait()
    return run


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.full
def test_a_run_ends_with_the_weights_of_its_best_evaluation(
    fleet: farflung.Fleet, whole: farflung.Run, tmp_path: Path
) -> None:
    losses = {found.step: found.loss for found in whole.metrics.validations if found.step}
    best = min(losses, key=lambda step: losses[step] or 0.0)
    summary = whole.wait()
    assert 2 < best < STEPS - 6, losses
    assert (summary.state, summary.steps, max(losses)) == ("done", best + 6, best + 6)
    assert summary.best == Best("loss", losses[best] or 0.0, best) and summary.weights_step == best
    assert summary.checkpoint_step == summary.steps and "stopped early: loss has not" in summary.reason
    shorter = fleet.train(job(steps=best), out=tmp_path / "shorter")
    shorter.wait()
    assert same(whole.state_dict(), shorter.state_dict())
    with safe_open(whole.folder / "model.safetensors", framework="pt") as file:
        assert file.metadata()["farflung:step"] == str(best)
        assert file.metadata()["farflung:best"] == f"loss {losses[best]!r}"
    exported = export_weights(str(whole.folder), out=tmp_path / "best.safetensors")
    assert exported.step == best


@pytest.mark.full
def test_a_resumed_run_stops_where_an_undisturbed_one_does(
    fleet: farflung.Fleet, whole: farflung.Run, tmp_path: Path
) -> None:
    end = whole.wait()
    assert end.best is not None
    best = end.best.step
    for stopped_at in (best - 2, best + 4):
        folder = tmp_path / str(stopped_at)
        first = fleet.train(job(**STOPPING, steps=stopped_at), out=folder)
        assert first.wait().weights_step == min(stopped_at, best)
        again = fleet.train(job(**STOPPING), resume=folder, steps=STEPS)
        summary = again.wait()
        assert (summary.steps, summary.reason, summary.best) == (end.steps, end.reason, end.best)
        assert same(again.state_dict(), whole.state_dict())


@pytest.mark.full
def test_a_resumed_run_makes_the_evaluation_that_its_checkpoint_lacks(
    fleet: farflung.Fleet, whole: farflung.Run, tmp_path: Path
) -> None:
    end, folder = whole.wait(), tmp_path / "run"
    only_stopping = {"stop_early": STOPPING["stop_early"]}
    fleet.train(job(**only_stopping, steps=end.steps - 2), out=folder, checkpoint_every=end.steps - 4).wait()
    shutil.rmtree(folder / "checkpoints" / str(end.steps - 2))  # as if the run had been killed before
    summary = fleet.train(job(**only_stopping), resume=folder, steps=STEPS).wait()
    assert (summary.steps, summary.reason, summary.best) == (end.steps, end.reason, None)
    assert summary.weights_step == end.steps


def test_a_run_that_stopped_early_goes_on_with_more_patience_only(
    fleet: farflung.Fleet, whole: farflung.Run
) -> None:
    before = whole.wait()
    with pytest.raises(CheckpointError, match="nothing is left to do: the run stopped early"):
        fleet.train(job(**STOPPING), resume=whole.folder)
    patient = {**STOPPING, "stop_early": farflung.EarlyStopping(patience=5)}
    summary = fleet.train(job(**patient), resume=whole.folder).wait()
    assert (summary.steps, summary.best) == (before.steps + 4, before.best)


def test_without_checkpoints_the_best_weights_come_home_all_the_same(
    fleet: farflung.Fleet, whole: farflung.Run, tmp_path: Path
) -> None:
    run = fleet.train(job(**STOPPING), out=tmp_path / "run", checkpoint_every="never")
    summary = run.wait()
    assert (summary.checkpoint_step, summary.best) == (None, whole.wait().best)
    assert same(run.state_dict(), whole.state_dict())


def accuracy(outputs: Any, batch: dict[str, Tensor]) -> Tensor:
    return batch["y"].mean()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keep_best": True, "validate_every": None}, "give Job(validate_every=)"),
        ({"keep_best": True, "validation": None}, "give Job(validation=)"),
        ({"stop_early": 3}, "stop_early must be farflung.EarlyStopping"),
        ({"keep_best": "loss"}, "keep_best must be True, False or farflung.KeepBest"),
        ({"keep_best": farflung.KeepBest("f1")}, "goes by 'f1', which the job does not measure; there is"),
        ({"keep_best": farflung.KeepBest("mine"), "metrics": {"mine": accuracy}}, "needs mode='max' or mode"),
    ],
)
def test_what_evaluations_cannot_decide_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words.replace("(", r"\(").replace(")", r"\)")):
        job(**changes)


@pytest.mark.parametrize("fields", [{"patience": 0}, {"min_delta": -1.0}, {"mode": "least"}])
def test_numbers_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(JobError, match=next(iter(fields))):
        farflung.EarlyStopping(**fields)

"""Moving averages of weights on real workers: those of `AveragedModel` in one process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.localhost.test_best_weights import Net, items
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import farflung
from farflung.errors import NoWeights

pytestmark = pytest.mark.processes

STEPS, DECAY, BATCH = 6, 0.75, 8


def job(**changes: Any) -> farflung.Job:
    torch.manual_seed(5)
    fields: dict[str, Any] = {
        "model": Net(),
        "data": items(1.0)[:BATCH],
        "optimizer": farflung.AdamW(lr=0.01, ema=DECAY),
        "batch": BATCH,
        "microbatches": 1,
        "steps": STEPS,
        "name": "net",
    }
    return farflung.Job(**{**fields, **changes})


def in_one_process(of: farflung.Job) -> AveragedModel:
    """Train the job's model here, each step on all items in the job's order."""
    net, order = of.model, of.order()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    for step in range(STEPS):
        net(**of.collated([of.items[index] for index in order.indices(step)])).backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(net)
    return averaged


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def fleet() -> Iterator[farflung.Fleet]:
    with farflung.local(2, device="cpu") as fleet:
        yield fleet


@pytest.mark.parametrize("saved", ["end", "never"])
def test_averages_come_home_beside_the_weights(fleet: farflung.Fleet, tmp_path: Path, saved: str) -> None:
    run = fleet.train(job(), out=tmp_path / "run", checkpoint_every=saved)
    run.wait()
    here = job()
    averaged = in_one_process(here)
    assert same(run.state_dict(), here.model.state_dict())
    assert same(run.state_dict(ema=True), averaged.module.state_dict())
    assert same(load_file(tmp_path / "run/ema.safetensors"), averaged.module.state_dict())
    other = Net()
    run.load_into(other, ema=True)
    assert same(other.state_dict(), averaged.module.state_dict())


@pytest.mark.full
def test_averages_go_on_after_a_resume(fleet: farflung.Fleet, tmp_path: Path) -> None:
    fleet.train(job(), steps=STEPS // 2, out=tmp_path / "run").wait()
    run = fleet.train(job(), resume=tmp_path / "run", steps=STEPS)
    run.wait()
    assert same(run.state_dict(ema=True), in_one_process(job()).module.state_dict())


def test_a_run_without_averages_says_so(fleet: farflung.Fleet, tmp_path: Path) -> None:
    run = fleet.train(job(optimizer=farflung.AdamW(lr=0.01)), out=tmp_path / "run", steps=1)
    run.wait()
    with pytest.raises(NoWeights, match="keeps no moving averages"):
        run.state_dict(ema=True)
    assert not (tmp_path / "run/ema.safetensors").exists()


@pytest.mark.full
def test_averages_of_jax_are_those_of_torch(tmp_path: Path) -> None:
    with farflung.local(2, backends=("torch", "jax"), device="cpu") as mixed:
        run = mixed.train(job(), out=tmp_path / "run")
        run.wait()
    expected = in_one_process(job()).module.state_dict()
    for name, tensor in run.state_dict(ema=True).items():
        assert torch.allclose(tensor, expected[name], rtol=0, atol=1e-5), name
    shutil.rmtree(tmp_path / "run")

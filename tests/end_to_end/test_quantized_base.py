"""Workers train an adapter on a quantized base as one process with the same base does, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.end_to_end.fleets import Fleet, running
from tests.end_to_end.test_parity import eager
from tests.support import adapters
from torch import nn

import farflung
from farflung.client.capture.prepared import prepare
from farflung.client.capture.quantizing import dequantized_copy, quantized_matrices
from farflung.client.output.checkpoints.identity import identity_of, require_same_run
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.client.output.export import export_weights
from farflung.client.run.checkpointing import Checkpointing, CheckpointPolicy
from farflung.errors import CheckpointError
from farflung.quantization import FORMATS, quantized_bytes

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS, STOPPED = 4, 2


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    torch.set_num_threads(1)
    with running(2, tmp_path_factory.mktemp("fleet")) as started:
        yield started


def job_of(form: str | None, steps: int = STEPS) -> farflung.Job:
    model = adapters.with_adapter(adapters.base(width=128), adapters.LORA)
    return adapters.job_of(model, steps, quantize=form)


def one_process(job: farflung.Job) -> tuple[list[float], nn.Module]:
    """Losses and the trained module of eager training with what the quantized matrices stand for."""
    quantization = prepare(job).quantization
    module = dequantized_copy(job.model, quantized_matrices(job.model, quantization), quantization)
    losses, _, trained = eager(dataclasses.replace(job, model=module, quantize=None), 2)
    return losses, trained


def trained(module: nn.Module) -> dict[str, Any]:
    return {name: one.detach() for name, one in module.named_parameters() if one.requires_grad}


@pytest.mark.full
@pytest.mark.parametrize("form", FORMATS)
def test_workers_train_as_one_process_with_the_same_base(fleet: Fleet, tmp_path: Path, form: str) -> None:
    job = job_of(form)
    losses, module = one_process(job)
    store = CheckpointStore.open(tmp_path / "kept")
    checkpointing = Checkpointing(CheckpointPolicy(steps=STOPPED), store, "r")
    summary, rows, _ = fleet.run(job, 2, checkpointing=checkpointing)
    assert summary.state == "done" and [row["loss"] for row in rows] == losses
    kept = load_file(tmp_path / f"kept/{STEPS}/model.safetensors")
    assert kept.keys() == trained(module).keys()
    assert all(torch.equal(kept[name], one) for name, one in trained(module).items())
    quantization = prepare(job).quantization
    assert quantization is not None
    named = dict(job.model.named_parameters(remove_duplicate=False))
    values = {name: named[name].numel() for name in quantization.matrices}
    codes = sum(quantized_bytes(count, quantization.forms[name]) for name, count in values.items())
    assert summary.loading_bytes < codes + 4 * (numbers(job) - sum(values.values())) * 1.1 + 50_000
    # The adapter merges into the model's own base, which is none other for having been quantized.
    export_weights(str(tmp_path / "kept"), tmp_path / "whole.safetensors", whole=prepare(job_of(None)))
    whole, own = load_file(tmp_path / "whole.safetensors"), job.model.state_dict()
    frozen = whole.keys() - trained(module).keys()
    assert frozen and all(torch.equal(whole[name], own[name]) for name in frozen)
    assert all(torch.equal(whole[name], one) for name, one in trained(module).items())


def numbers(job: farflung.Job) -> int:
    return sum(one.numel() for one in job.model.parameters())


@pytest.mark.full
def test_a_run_goes_on_with_its_own_format_only(fleet: Fleet, tmp_path: Path) -> None:
    job = job_of("nf4")
    losses, _ = one_process(job)
    store, policy = CheckpointStore.open(tmp_path), CheckpointPolicy()
    fleet.run(job_of("nf4", STOPPED), 2, checkpointing=Checkpointing(policy, store, "r"))
    again = Checkpointing(policy, store, "r", store.load(), attempts=1)
    _, rows, _ = fleet.run(job, 2, checkpointing=again)
    assert [row["loss"] for row in rows] == losses[STOPPED:]
    for form in ("int8", None):
        other = prepare(job_of(form))
        with pytest.raises(CheckpointError, match=f"model: quantize nf4 there, {form or 'none'} here"):
            require_same_run(store.load().record, identity_of(other, other.training))


class Half(nn.Module):
    """A frozen layer and a trained one, without an adapter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 1)
        self.first.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x))).square().mean()


class Vectors:
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(64, generator=torch.Generator().manual_seed(index))}


def test_the_result_has_the_models_own_frozen_weights(fleet: Fleet) -> None:
    job = farflung.Job(
        model=Half(), data=Vectors(), optimizer=farflung.SGD(lr=0.1), batch=8, microbatches=2, steps=3,
        quantize="int8",
    )  # fmt: skip
    losses, module = one_process(job)
    _, rows, folder = fleet.run(job, 2)
    assert [row["loss"] for row in rows] == losses
    whole = load_file(folder / "model.safetensors")
    assert torch.equal(whole["first.weight"], job.model.get_parameter("first.weight"))
    assert torch.equal(whole["last.weight"], module.get_parameter("last.weight"))


@pytest.mark.full
def test_a_worker_on_jax_computes_nearly_the_same(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    job = job_of("nf4", 2)
    losses, _ = one_process(job)
    with running(2, tmp_path, backends=("torch", "jax")) as mixed:
        _, rows, _ = mixed.run(job, 2)
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-5)

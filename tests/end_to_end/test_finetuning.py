"""Workers train an adapter as one process does; it comes home alone, and goes on with its own base only."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.end_to_end.fleets import Fleet, running
from tests.end_to_end.test_parity import eager
from tests.support import adapters
from torch import Tensor, nn

import farflung
from farflung.cli.main import run as command
from farflung.client.capture.prepared import prepare
from farflung.client.output.checkpoints.identity import identity_of, require_same_run
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.client.output.export import export_weights
from farflung.client.run.checkpointing import Checkpointing, CheckpointPolicy
from farflung.errors import CheckpointError

pytestmark = [pytest.mark.processes, pytest.mark.slow]

peft = adapters.peft
STEPS, STOPPED = 4, 2


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    torch.set_num_threads(1)
    with running(2, tmp_path_factory.mktemp("fleet")) as started:
        yield started


def logits(model: nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad():
        found: Tensor = model(input_ids=adapters.Sentences()[0]["input_ids"][None]).logits
    return found


def test_an_adapter_comes_home_as_peft_loads_it(fleet: Fleet, tmp_path: Path) -> None:
    job = adapters.job_of(adapters.wrapped(), STEPS)
    losses, _, module = eager(job, 2)
    digest = prepare(job).base_sha256
    store = CheckpointStore.open(tmp_path / "kept")
    checkpointing = Checkpointing(CheckpointPolicy(steps=STOPPED), store, "r")
    summary, rows, folder = fleet.run(job, 2, checkpointing=checkpointing)
    assert (summary.state, summary.weights_step) == ("done", STEPS)
    assert [row["loss"] for row in rows] == losses
    assert not (folder / "model.safetensors").exists()
    for adapter in (folder / "adapter", tmp_path / f"kept/{STEPS}"):
        loaded = peft.PeftModel.from_pretrained(adapters.base(), adapter)
        assert torch.equal(logits(loaded), logits(module))
    assert prepare(job).base_sha256 == digest  # the job's own model is only read from
    kept = load_file(tmp_path / f"kept/{STEPS}/model.safetensors")
    assert kept.keys() == {name for name, one in module.named_parameters() if one.requires_grad}
    slots = {key.partition(":")[2] for key in load_file(tmp_path / f"kept/{STEPS}/optimizer.safetensors")}
    assert slots == kept.keys()


@pytest.mark.full
def test_a_run_of_an_adapter_goes_on_from_its_checkpoint(fleet: Fleet, tmp_path: Path) -> None:
    whole = adapters.job_of(adapters.wrapped(), STEPS)
    losses, _, module = eager(whole, 2)
    store = CheckpointStore.open(tmp_path)
    policy = CheckpointPolicy()
    fleet.run(
        adapters.job_of(adapters.wrapped(), STOPPED), 2, checkpointing=Checkpointing(policy, store, "r")
    )
    again = Checkpointing(policy, store, "r", store.load(), attempts=1)
    _, rows, folder = fleet.run(adapters.job_of(adapters.wrapped(), STEPS), 2, checkpointing=again)
    assert [row["loss"] for row in rows] == losses[STOPPED:]
    loaded = peft.PeftModel.from_pretrained(adapters.base(), folder / "adapter")
    assert torch.equal(logits(loaded), logits(module))
    other = prepare(adapters.job_of(adapters.wrapped(seed=1), STEPS))
    with pytest.raises(CheckpointError, match=r"model: frozen weights [0-9a-f]{12} there, [0-9a-f]{12} here"):
        require_same_run(store.load().record, identity_of(other, other.training))


@pytest.mark.full
def test_export_writes_the_adapter_or_the_whole_model(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job = adapters.job_of(adapters.wrapped(), STEPS)
    _, _, module = eager(job, 2)
    store = CheckpointStore.open(tmp_path / "kept")
    _, _, folder = fleet.run(job, 2, checkpointing=Checkpointing(CheckpointPolicy(), store, "r"))
    for source in (folder, tmp_path / "kept"):
        assert command(["export", str(source), "--out", "mine", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["file"], found["step"]) == ("mine", STEPS)
        loaded = peft.PeftModel.from_pretrained(adapters.base(), "mine")
        assert torch.equal(logits(loaded), logits(module))
        export_weights(str(source), Path("whole.safetensors"), whole=prepare(copy.deepcopy(job)))
        expected = module.state_dict()
        whole = load_file("whole.safetensors")
        assert whole.keys() == expected.keys()
        assert all(torch.equal(whole[name], tensor) for name, tensor in expected.items())
    other = prepare(adapters.job_of(adapters.wrapped(seed=1), STEPS))
    with pytest.raises(CheckpointError, match=r"is of another base: its frozen weights are [0-9a-f]{12}"):
        export_weights(str(folder), whole=other)
    (tmp_path / "mine/notes.txt").write_text("keep me")
    assert command(["export", str(folder), "--out", "mine"]) == 2
    assert "mine is no folder of an adapter alone" in capsys.readouterr().err


class HalfFrozen(nn.Module):
    """Two layers, of which the first is frozen; BatchNorm's statistics change nevertheless."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x)))).square().mean()


class Vectors:
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.randn(8, generator=torch.Generator().manual_seed(index))}


def test_a_checkpoint_leaves_out_what_is_frozen_but_the_end_is_whole(fleet: Fleet, tmp_path: Path) -> None:
    job = farflung.Job(
        model=HalfFrozen(),
        data=Vectors(),
        optimizer=farflung.AdamW(lr=1e-2),
        batch=8,
        microbatches=2,
        steps=3,
    )
    losses, _, module = eager(job, 2)
    store = CheckpointStore.open(tmp_path / "kept")
    _, rows, folder = fleet.run(job, 2, checkpointing=Checkpointing(CheckpointPolicy(), store, "r"))
    assert [row["loss"] for row in rows] == losses
    expected = module.state_dict()
    kept = load_file(tmp_path / "kept/3/model.safetensors")
    assert kept.keys() == {name for name in expected if not name.startswith("first.")}
    whole = load_file(folder / "model.safetensors")
    assert whole.keys() == expected.keys()
    assert all(torch.equal(whole[name], tensor) for name, tensor in expected.items())
    with pytest.raises(CheckpointError, match="kept/3 leaves out the frozen weights: add --whole"):
        export_weights(str(tmp_path / "kept"), tmp_path / "a.safetensors")

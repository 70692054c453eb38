"""`model.safetensors`: by parameter name, ties once, and back into the module with nothing missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tests.support.checkpoints import TIES, Tied

from farflung.client.output.tensor_file import STEP, read_tensors, write_tensors
from farflung.client.output.weights import load_weights, save_weights
from farflung.errors import JobError, RunFailed


def test_trained_weights_come_back_into_a_fresh_module(tmp_path: Path) -> None:
    module, path = Tied(), tmp_path / "model.safetensors"
    trained = {
        "symbol.weight": torch.randn(5, 3),
        "norm.running_mean": torch.randn(3),
        "norm.num_batches_tracked": torch.tensor(7),
        "positions": torch.arange(4),
    }
    save_weights(path, module, trained, TIES, 40)
    fresh = Tied()
    load_weights(path, fresh)
    assert torch.equal(fresh.head.weight, trained["symbol.weight"])
    assert fresh.head.weight is fresh.symbol.weight
    assert torch.equal(fresh.norm.running_mean, trained["norm.running_mean"])
    assert int(fresh.norm.num_batches_tracked) == 7
    assert torch.equal(fresh.unused, module.unused)


def test_the_file_holds_each_tensor_once_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(path, Tied(), {}, TIES, 40)
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        assert file.metadata() == {"head.weight": "same as symbol.weight", "farflung:step": "40"}
    assert "symbol.weight" in names and not names & {"head.weight", "positions"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("step", ["", "-1", "4.0", "٤٠", "²", "9" * 19, "9" * 5000])
def test_a_step_that_is_none_is_ignored(step: str, tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {"x": torch.ones(1)}, {STEP: step})
    assert read_tensors(tmp_path / "a")[1] is None


def test_a_file_of_another_model_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(path, Tied(4), {}, TIES, 40)
    with pytest.raises(JobError, match="does not fit the model") as caught:
        load_weights(path, Tied(3))
    assert "\n" not in str(caught.value)
    path.write_bytes(b"garbage")
    with pytest.raises(JobError, match="does not fit the model"):
        load_weights(path, Tied())


def test_a_disk_that_takes_no_more_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(path, Tied(), {}, TIES, 40)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunFailed, match="cannot write to the run folder"):
        save_weights(path, Tied(), {"unused": torch.zeros(2)}, TIES, 40)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]

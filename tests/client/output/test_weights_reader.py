"""A model declared without values, trained from safetensors files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks.zoo import case
from safetensors.torch import save_file
from tests.client.capture.test_check import Items, job_of
from torch import nn

from farflung.client.api.job import Job
from farflung.client.capture.check import check_job
from farflung.client.capture.prepared import prepare
from farflung.client.output.weights import load_weights, save_weights
from farflung.errors import CaptureError, FarflungError, JobError


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return case(name).build()


def declared(name: str, weights: Path | None = None) -> Job:
    return job_of(case(name), model=on_meta(name), weights=weights)


def distinct(module: nn.Module) -> dict[str, torch.Tensor]:
    """As Hugging Face saves: a tied tensor under its first name only."""
    found = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return found | dict(module.named_buffers())


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "gpt-tied", "batch-norm", "gpt2-mask"])
def test_state_is_read_from_one_file(name: str, tmp_path: Path) -> None:
    module = case(name).build()
    save_file(distinct(module), tmp_path / "model.safetensors")
    prepared = prepare(declared(name, tmp_path / "model.safetensors"))
    real = prepare(job_of(case(name), model=module))
    assert prepared.program == real.program
    assert prepared.state.keys() == real.state.keys() and len(prepared.state) == len(real.state)
    assert all(torch.equal(prepared.state[name], tensor) for name, tensor in real.state.items())
    assert any("self-check was not checked: no weights" in remark for remark in prepared.remarks)


def test_state_is_read_from_shards_in_another_type(tmp_path: Path) -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in distinct(case("chain").build()).items()}
    first = dict(list(tensors.items())[:3])
    save_file(first, tmp_path / "a.safetensors")
    save_file({n: t for n, t in tensors.items() if n not in first}, tmp_path / "b.safetensors")
    index = {n: "a.safetensors" if n in first else "b.safetensors" for n in tensors}
    for listed in (True, False):
        if listed:
            path = tmp_path / "model.safetensors.index.json"
            path.write_text(json.dumps({"metadata": {}, "weight_map": index}))
        else:
            path.unlink()
        state = prepare(declared("chain", tmp_path)).state
        assert all(torch.equal(state[name], tensor.float()) for name, tensor in tensors.items())
        assert {tensor.dtype for tensor in state.values()} == {torch.float32}


def broken(path: Path) -> None:
    path.write_bytes(b"\x00" * 40)


def absent(path: Path) -> None:
    path.unlink()


def shorter(path: Path) -> None:
    tensors = distinct(case("chain").build())
    save_file(tensors | {"layers.0.bias": torch.zeros(3)}, path)


def fewer(path: Path) -> None:
    tensors = distinct(case("chain").build())
    del tensors["layers.2.weight"]
    save_file(tensors, path)


def whole_numbers(path: Path) -> None:
    tensors = distinct(case("chain").build())
    save_file(tensors | {"layers.0.bias": torch.zeros(16, dtype=torch.int64)}, path)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (broken, "cannot be read"),
        (absent, "cannot be read"),
        (shorter, r"'layers.0.bias' in shape \[3\], the model has \[16\]"),
        (fewer, "has no 'layers.2.weight'"),
        (whole_numbers, "'layers.0.bias' as I64, the model has float32"),
    ],
)
def test_what_does_not_fit_is_refused(harm: object, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(distinct(case("chain").build()), path)
    harm(path)  # type: ignore[operator]
    with pytest.raises(JobError, match=words):
        prepare(declared("chain", path))


@pytest.mark.parametrize("text", ["{", '{"weight_map": {"a": "../../etc/passwd"}}', '{"weight_map": 3}'])
def test_an_index_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(JobError, match=r"index\.json"):
        prepare(declared("chain", tmp_path))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="expected safetensors files"):
        prepare(declared("chain", tmp_path))


def test_without_weights_only_emulated_runs_and_pictures() -> None:
    with pytest.raises(CaptureError, match=r"give Job\(weights=\.\.\.\); only an emulated run"):
        prepare(declared("chain"))
    with pytest.raises(JobError, match="has no values to compute with"):
        check_job(declared("chain"), 2)


def test_weights_are_for_models_without_values(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="this one has its own"):
        job_of(case("chain"), weights=tmp_path)
    with pytest.raises(JobError, match="must be the path or URL"):
        Job(
            model=on_meta("chain"), data=Items(case("chain")), optimizer=job_of(case("chain")).optimizer,
            batch=8, microbatches=4, steps=3, weights=3,  # type: ignore[arg-type]
        )  # fmt: skip


def test_what_was_trained_is_saved_and_read_into_a_module_without_values(tmp_path: Path) -> None:
    trained = distinct(case("chain").build())
    save_weights(tmp_path / "model.safetensors", on_meta("chain"), trained, {}, 1)
    module = on_meta("chain")
    load_weights(tmp_path / "model.safetensors", module)
    assert all(torch.equal(tensor, trained[name]) for name, tensor in module.state_dict().items())


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(FarflungError, match="precision must be 'float32' or 'bfloat16', found 'fp8'"):
        job_of(case("chain"), precision="fp8")

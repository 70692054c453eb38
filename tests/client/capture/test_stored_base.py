"""Weights that a job names by URL: what workers find there, and what they are told of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.support import adapters
from tests.support.web import Web, web

from farflung.client.capture.prepared import Prepared, prepare
from farflung.client.output.weights_reader import stored_names
from farflung.errors import JobError
from farflung.quantization import values_in
from farflung.weights.files import WeightFiles
from farflung.weights.quantizing import quantize_stored

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path / "home"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Web]:
    folder = tmp_path / "web"
    folder.mkdir()
    with web(folder) as running:
        running.etag = '"1"'
        yield running


def stored(server: Web, dtype: torch.dtype = torch.float32, **changes: Any) -> None:
    """Put the tiny base there as Hugging Face saves it: the tied head under the embedding's name only."""
    tensors = {name: one.detach().to(dtype) for name, one in adapters.base().named_parameters()}
    save_file({**tensors, **changes}, server.folder / "model.safetensors")


def prepared(server: Web, model: Any, quantize: str | None = None) -> Prepared:
    return prepare(adapters.job_of(model, weights=server.url, quantize=quantize))


def found(server: Web, of: Prepared) -> set[str]:
    """The frozen tensors that workers find at the URL; each must have the digest that it is listed with."""
    assert of.stored is not None
    digests = of.digests.of(sorted(of.state.keys() - of.changed))
    places = of.stored.places(digests)
    content = (server.folder / "model.safetensors").read_bytes()
    for name, at in places.items():
        tensor = of.state[name]
        kind = getattr(torch, at.widened or str(tensor.dtype).removeprefix("torch."))
        size = tensor.numel() * kind.itemsize
        part = torch.frombuffer(bytearray(content[at.offset : at.offset + size]), dtype=kind)
        assert torch.equal(part.reshape(tensor.shape).to(tensor.dtype), tensor)
    return set(places)


def rounded(dtype: torch.dtype) -> Any:
    """The tiny base with the values that its parameters have in a file of this element type."""
    model = adapters.base()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).float()
    return model


def parameters(of: Prepared) -> set[str]:
    return {entry.name for entry in of.graph.inputs_of("parameter") if not entry.trainable}


@pytest.mark.cases(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_peft_models_base_is_found_under_its_plain_names(server: Web, dtype: torch.dtype) -> None:
    stored(server, dtype)
    of = prepared(server, adapters.with_adapter(rounded(dtype), adapters.LORA))
    before = server.sent_bytes
    assert found(server, of) == parameters(of)
    assert server.sent_bytes == before  # names and forms say where; workers compare the bytes


@pytest.mark.full
def test_a_base_on_the_meta_device_is_never_made_here(server: Web) -> None:
    stored(server, torch.bfloat16)
    real = prepared(server, adapters.with_adapter(rounded(torch.bfloat16), adapters.LORA))
    model = adapters.on_the_meta_device()
    of = prepared(server, model)
    assert of.digests.of(parameters(of)) == real.digests.of(parameters(of))
    assert of.base_sha256 == real.base_sha256
    before = server.sent_bytes
    again = prepared(server, model)
    opened = server.sent_bytes - before
    assert again.base_sha256 == of.base_sha256 and opened < 20_000
    assert server.sent_bytes == before + opened  # the digests are known from the first time
    assert found(server, of) == parameters(of)


@pytest.mark.cases(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("names", ["its own", "others"])
def test_quantized_matrices_are_found_as_they_are_stored(server: Web, dtype: torch.dtype, names: str) -> None:
    """They are listed by the digests of their codes, and told how to be made of what is stored."""
    tensors = {n: one.detach().to(dtype) for n, one in adapters.base(width=128).named_parameters()}
    if names == "others":
        tensors = {f"other.{at}": one for at, one in enumerate(tensors.values())}
    save_file(tensors, server.folder / "model.safetensors")
    model = adapters.base(width=128)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).float()
    model = adapters.with_adapter(model, adapters.LORA)
    of, plain = prepared(server, model, "nf4"), prepared(server, model)
    assert of.quantization is not None and of.stored is not None
    assert of.base_sha256 == plain.base_sha256  # the base is what it was
    assert of.state.keys() == plain.state.keys()
    listed = of.digests.of(sorted(of.state.keys() - of.changed))
    places = of.stored.places(listed)
    assert {name for name, at in places.items() if at.quantized} == of.quantization.matrices
    content = (server.folder / "model.safetensors").read_bytes()
    for name in of.quantization.matrices:
        at, held, form = places[name], of.state[name], of.quantization.forms[name]
        assert (at.widened, at.quantized) == ("" if dtype == torch.float32 else "bfloat16", form)
        memory = memoryview(bytearray(held.numel()))
        size = values_in(held.numel(), form) * dtype.itemsize
        quantize_stored(memoryview(content)[at.offset : at.offset + size], str(dtype)[6:], form, memory)
        assert bytes(memory) == held.numpy().tobytes()
        assert hashlib.sha256(memory).digest() == listed[name]


@pytest.mark.full
def test_quantized_matrices_of_a_model_without_values_are_never_made_whole(server: Web) -> None:
    tensors = {n: one.detach().bfloat16() for n, one in adapters.base(width=128).named_parameters()}
    save_file(tensors, server.folder / "model.safetensors")
    rounded = adapters.base(width=128)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16().float()
    real = prepared(server, adapters.with_adapter(rounded, adapters.LORA), "int8")
    of = prepared(server, adapters.on_the_meta_device(width=128), "int8")
    names = sorted(of.state.keys() - of.changed)
    assert of.digests.of(names) == real.digests.of(names)
    assert of.base_sha256 == real.base_sha256


def test_stored_values_that_are_no_numbers_end_the_job_in_one_line(server: Web) -> None:
    tensors = {n: one.detach().clone() for n, one in adapters.base(width=128).named_parameters()}
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 3] = torch.nan
    save_file(tensors, server.folder / "model.safetensors")
    of = prepared(server, adapters.on_the_meta_device(width=128), "nf4")
    with pytest.raises(JobError, match=r"^quantize='nf4': \S+up_proj.weight has values that are infinite or"):
        of.digests.of(sorted(of.state.keys() - of.changed))


def test_a_stored_tensor_that_the_model_has_not_may_have_values_that_are_no_numbers(
    server: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of the form of some matrices, which are searched for by their bytes, and is read once."""
    model = adapters.base(width=128)
    stranger = torch.full_like(model.model.layers[0].self_attn.q_proj.weight, torch.inf).detach()
    tensors = {f"other.{n}": p.detach() for n, p in enumerate(model.parameters())}
    save_file({"a": stranger, **tensors}, server.folder / "model.safetensors")
    of = prepared(server, adapters.with_adapter(model, adapters.LORA), "nf4")
    assert of.stored is not None and of.quantization is not None
    read: list[str] = []
    whole = WeightFiles.read

    def counted(self: WeightFiles, name: str, take: Any) -> None:
        read.append(name)
        whole(self, name, take)

    monkeypatch.setattr(WeightFiles, "read", counted)
    places = of.stored.places(of.digests.of(sorted(of.state.keys() - of.changed)))
    assert {name for name, at in places.items() if at.quantized} == of.quantization.matrices
    assert read.count("a") == 1


def test_a_base_with_other_names_is_found_by_its_bytes(server: Web) -> None:
    tensors = {f"other.{n}": p.detach() for n, p in enumerate(adapters.base().parameters())}
    save_file(tensors, server.folder / "model.safetensors")
    of = prepared(server, adapters.wrapped())
    assert found(server, of) == parameters(of)


@pytest.mark.full
def test_another_base_with_the_same_names_is_left_to_the_workers_to_refuse(server: Web) -> None:
    stored(server)
    of = prepared(server, adapters.with_adapter(adapters.base(seed=1), adapters.LORA))
    assert of.stored is not None
    digests = of.digests.of(sorted(parameters(of)))
    assert set(of.stored.places(digests)) == parameters(of)
    name = min(parameters(of))
    assert digests[name] != prepared(server, adapters.wrapped()).digests.of([name])[name]


def test_weights_that_are_not_there_end_the_job_in_one_line(server: Web) -> None:
    with pytest.raises(JobError, match=r"^http://127.0.0.1:\d+/model.safetensors cannot be read: .* 404"):
        prepared(server, adapters.wrapped())
    with torch.device("meta"):
        base = adapters.base()
    stored(server)
    with pytest.raises(JobError, match=r"127.0.0.1:\d+ has no '.*inv_freq', which the model needs"):
        prepared(server, base)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("base_model.model.model.layers.0.q_proj.base_layer.weight", "model.layers.0.q_proj.weight"),
        ("base_model.model.norm.original_module.weight", "norm.weight"),
        ("base_model.layers.0.weight", "layers.0.weight"),
        ("module.a.weight", "a.weight"),
        ("_orig_mod.a.weight", "a.weight"),
    ],
)
def test_wrappers_names_are_taken_off(name: str, plain: str) -> None:
    names = [*stored_names(name, ["tied.weight"])]
    assert names[:2] == [name, "tied.weight"] and plain in names

"""An adapter is written as PEFT's own files, and loads on the base in plain PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tests.support import adapters
from torch import Tensor, nn

from farflung.client.output.adapter import (
    Adapter,
    TrainedAdapter,
    adapter_of,
    adapter_that_holds,
    merged,
    save_adapter,
)
from farflung.client.output.result import load_result
from farflung.errors import JobError

peft = adapters.peft


def trained(model: nn.Module) -> dict[str, Tensor]:
    """Other values for all that the model trains."""
    torch.manual_seed(9)
    return {n: torch.randn_like(p) for n, p in model.named_parameters() if p.requires_grad}


def found(model: nn.Module) -> Adapter:
    adapter = adapter_that_holds(model, trained(model).keys())
    assert adapter is not None
    return adapter


def outputs(model: Any) -> Tensor:
    model.eval()
    with torch.no_grad():
        logits: Tensor = model(input_ids=adapters.Sentences()[0]["input_ids"][None]).logits
    return logits


@pytest.mark.parametrize("kind", adapters.CONFIGS)
def test_peft_loads_it_with_equal_outputs(kind: str, tmp_path: Path) -> None:
    model = adapters.wrapped(kind)
    before = adapters.weights_of(model)
    values = trained(model)
    save_adapter(tmp_path / "adapter", TrainedAdapter(found(model), merged(model, values, {}), 7, "ab" * 32))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors"}
    loaded = peft.PeftModel.from_pretrained(adapters.base(), tmp_path / "adapter")
    model.load_state_dict(values, strict=False)
    assert torch.equal(outputs(loaded), outputs(model))
    assert loaded.peft_config["default"].inference_mode


def test_the_file_says_which_base_and_step(tmp_path: Path) -> None:
    model = adapters.wrapped()
    save_adapter(
        tmp_path / "adapter", TrainedAdapter(found(model), model.state_dict(keep_vars=True), 7, "ab" * 32)
    )
    with safe_open(tmp_path / "adapter/adapter_model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "farflung:step": "7", "farflung:base": "ab" * 32}
        assert file.keys() and all(".lora_" in name and ".default" not in name for name in file.keys())  # noqa: SIM118


def test_a_later_adapter_replaces_an_earlier_one_and_loads_back(tmp_path: Path) -> None:
    model = adapters.wrapped()
    adapter, values = found(model), trained(model)
    save_adapter(tmp_path / "adapter", TrainedAdapter(adapter, model.state_dict(keep_vars=True), 1, ""))
    save_adapter(tmp_path / "adapter", TrainedAdapter(adapter, merged(model, values, {}), 2, ""))
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]
    load_result(tmp_path / "adapter", model)
    assert all(torch.equal(model.get_parameter(name), tensor) for name, tensor in values.items())
    with pytest.raises(JobError, match="is an adapter: load it into a PEFT model"):
        load_result(tmp_path / "adapter", adapters.base())
    with pytest.raises(JobError, match="the adapter does not fit the model"):
        load_result(tmp_path / "adapter", adapters.with_adapter(adapters.base(), adapters.LORA, r=2))


def test_an_adapter_inside_another_module_is_found() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = adapters.wrapped()

    wrapper = Wrapper()
    names = [name for name, one in wrapper.named_parameters() if one.requires_grad]
    adapter = adapter_that_holds(wrapper, names)
    assert adapter is not None and adapter.prefix == "policy."
    assert (
        adapter.tensors(wrapper.state_dict()).keys()
        == found(wrapper.policy).tensors(wrapper.policy.state_dict()).keys()
    )


def test_what_the_adapter_does_not_hold_is_not_dropped() -> None:
    model = adapters.wrapped()
    assert adapter_of(adapters.base()) is None
    names = [*trained(model), "base_model.model.model.norm.weight"]
    assert adapter_of(model) is not None and adapter_that_holds(model, names) is None

"""LoRA on each architecture of transformers that the zoo has: cut, it trains as in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.coverage_cases.case import Items
from benchmarks.zoo import MODELS
from benchmarks.zoo.case import Case
from torch import nn

import farflung

peft = pytest.importorskip("peft", reason="PEFT is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = pytest.mark.slow

NAMES = ["gpt2", "llama", "qwen3", "qwen3-moe", "bert", "t5", "vit", "resnet18", "resnet50"]
FULL = {"qwen3", "qwen3-moe", "bert", "resnet18", "resnet50"}
"""Only `make test-all` trains these."""
CASES = {case.name: case for case in MODELS}


def adapted(case: Case) -> Any:
    """The model with LoRA in each linear layer and convolution, its second matrix not zero."""
    model = case.build()
    torch.manual_seed(1)
    kinds = (nn.Linear, nn.Conv2d, transformers.pytorch_utils.Conv1D)
    layers = [name for name, part in model.named_modules() if isinstance(part, kinds)]
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=layers, init_lora_weights=False))


def test_every_architecture_of_the_library_is_tried() -> None:
    found = [
        type(model) for case in MODELS if isinstance(model := case.build(), transformers.PreTrainedModel)
    ]
    assert set(found) == {type(CASES[name].build()) for name in NAMES}


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if name in FULL else []) for name in NAMES]
)
def test_an_adapter_in_a_cut_model_trains_as_in_one_process(name: str) -> None:
    case = CASES[name]
    model = adapted(case)
    trained = [one for one, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained and all("lora_" in one for one in trained)
    job = farflung.Job(
        model=model,
        data=Items(case.batch(16, 0)),
        loss=case.loss,
        optimizer=farflung.AdamW(lr=1e-3),
        batch=8,
        microbatches=2,
        steps=2,
    )
    report = farflung.check(job, steps=2)
    assert report.ok, report
    assert report.segments > 1

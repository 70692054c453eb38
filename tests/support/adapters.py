"""A tiny language model wrapped by PEFT, and jobs that train its adapter."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import farflung

peft = pytest.importorskip("peft", reason="PEFT is not installed")

WORDS, LENGTH = 64, 12


def base(seed: int = 0, layers: int = 3, tied: bool = True, width: int = 32) -> nn.Module:
    """A Llama of random weights, whose head is its embedding if it is `tied`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": width, "intermediate_size": width + width // 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(
        vocab_size=WORDS, num_hidden_layers=layers, tie_word_embeddings=tied, use_cache=False, **sizes
    )
    return LlamaForCausalLM(config).float()


LORA = peft.LoraConfig(
    r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False
)
CONFIGS = {
    "lora": LORA,
    "dora": peft.LoraConfig(
        r=4,
        target_modules=["q_proj", "down_proj"],
        task_type="CAUSAL_LM",
        use_dora=True,
        init_lora_weights=False,
    ),
    "ia3": peft.IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        task_type="CAUSAL_LM",
    ),
    "prompt": peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "prefix": peft.PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "with the head": peft.LoraConfig(
        r=4,
        target_modules=["q_proj"],
        modules_to_save=["norm"],
        task_type="CAUSAL_LM",
        init_lora_weights=False,
    ),
}


def wrapped(kind: str = "lora", seed: int = 0) -> Any:
    """The tiny model with a fresh adapter; the same for the same `seed`."""
    return with_adapter(base(seed), CONFIGS[kind])


def with_adapter(model: nn.Module, config: Any, **changes: Any) -> Any:
    """A model with a fresh adapter of this configuration, with changes."""
    torch.manual_seed(1)
    config = copy.deepcopy(config)
    for name, value in changes.items():
        setattr(config, name, value)
    return peft.get_peft_model(model, config)


def on_the_meta_device(**sizes: int) -> Any:
    """The tiny model without values, but those of its buffers, which are in no file, and of its adapter."""
    with torch.device("meta"):
        bare: Any = base(**sizes)
    whole: Any = base(**sizes)
    bare.model.rotary_emb = whole.model.rotary_emb
    model = with_adapter(bare, LORA)
    for name, parameter in list(model.named_parameters()):
        if parameter.requires_grad:
            values = nn.Parameter(torch.zeros(parameter.shape))
            model.get_submodule(name.rpartition(".")[0]).weight = values
    return model


class Sentences:
    """Items of random words; the first `masked` of each have no label."""

    def __init__(self, items: int = 16, masked: int = 3) -> None:
        self._words = torch.randint(WORDS, (items, LENGTH), generator=torch.Generator().manual_seed(5))
        self._masked = masked

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        words = self._words[index]
        labels = words.clone()
        labels[: self._masked] = -100
        return {"input_ids": words, "labels": labels}


def job_of(model: nn.Module, steps: int = 3, **changes: Any) -> farflung.Job:
    """A job that trains the model on `Sentences`."""
    declared: dict[str, Any] = {"optimizer": farflung.AdamW(lr=3e-3), "batch": 8, "microbatches": 2}
    return farflung.Job(model=model, data=Sentences(), steps=steps, **{**declared, **changes})


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the model's state dict."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

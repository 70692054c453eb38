"""GPT-2, Llama, ResNet-101 and ViT of Hugging Face with random weights, each at several sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Subject:
    """A model, a maker of microbatches for it, and how many samples one has."""

    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    samples: int


def _model(kind: str, **configuration: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        made = getattr(transformers, kind)
        torch.manual_seed(0)
        built: nn.Module = made(made.config_class(**{"attn_implementation": "sdpa", **configuration}))
        return built.train()

    return build


def _tokens(sequence: int, symbols: int) -> Callable[[int], Batch]:
    def batch(samples: int) -> Batch:
        drawn = torch.randint(0, symbols, (samples, sequence))
        return {"input_ids": drawn, "labels": drawn.clone()}

    return batch


def _pictures(side: int, classes: int) -> Callable[[int], Batch]:
    def batch(samples: int) -> Batch:
        return {
            "pixel_values": torch.randn(samples, 3, side, side),
            "labels": torch.randint(0, classes, (samples,)),
        }

    return batch


def _gpt2(
    layers: int, width: int, sequence: int, symbols: int, samples: int, dropout: float = 0.0
) -> Subject:
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    build = _model(
        "GPT2LMHeadModel",
        n_layer=layers,
        n_embd=width,
        n_head=width // 64,
        n_positions=sequence,
        vocab_size=symbols,
        use_cache=False,
        **rates,
    )
    return Subject(build, _tokens(sequence, symbols), samples)


def _llama(layers: int, width: int, sequence: int, symbols: int, samples: int) -> Subject:
    build = _model(
        "LlamaForCausalLM",
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 32 * 32,
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 128),
        max_position_embeddings=sequence,
        vocab_size=symbols,
        use_cache=False,
    )
    return Subject(build, _tokens(sequence, symbols), samples)


def _resnet(side: int, samples: int) -> Subject:
    build = _model(
        "ResNetForImageClassification", depths=[3, 4, 23, 3], num_labels=1000, attn_implementation="eager"
    )
    return Subject(build, _pictures(side, 1000), samples)


def _vit(layers: int, width: int, side: int, samples: int) -> Subject:
    build = _model(
        "ViTForImageClassification",
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=width // 64,
        image_size=side,
        num_labels=1000,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Subject(build, _pictures(side, 1000), samples)


SUBJECTS = {
    "gpt2-4x256": _gpt2(4, 256, 128, 8192, 4),
    "gpt2-12x768": _gpt2(12, 768, 128, 50257, 1),
    "gpt2-4x512-dropout": _gpt2(4, 512, 256, 8192, 2, dropout=0.1),
    "llama-4x256": _llama(4, 256, 128, 8192, 4),
    "llama-8x512": _llama(8, 512, 256, 16384, 1),
    "resnet101-64": _resnet(64, 4),
    "resnet101-128": _resnet(128, 2),
    "vit-6x192": _vit(6, 192, 96, 8),
    "vit-12x384": _vit(12, 384, 160, 2),
}

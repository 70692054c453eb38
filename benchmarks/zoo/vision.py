"""Hugging Face's models of pictures: a vision transformer and ResNets with BatchNorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.zoo.batches import WIDTH
from benchmarks.zoo.case import Batch, Case, RealSize, seeded
from benchmarks.zoo.hugging_face import EVERYWHERE, model

VIT: dict[str, Any] = {
    "attn_implementation": "sdpa",
    "hidden_size": WIDTH,
    "num_hidden_layers": 5,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 10,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
THIN: dict[str, Any] = {"embedding_size": 4, "hidden_sizes": [8, 8, 12, 16], "num_labels": 10}


def pictures(side: int, classes: int) -> Callable[[int, int], Batch]:
    """Random pictures, (samples, 3, side, side), and their classes."""

    def batch(samples: int, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        return {
            "pixel_values": torch.randn(samples, 3, side, side, generator=generator),
            "labels": torch.randint(0, classes, (samples,), generator=generator),
        }

    return batch


def resnet(name: str, depths: list[int], layer: str, widths: list[int], precise: str) -> Case:
    """A ResNet as published in width, and thin for tests."""
    kind, shape = "ResNetForImageClassification", {"depths": depths, "layer_type": layer}
    return Case(
        name,
        seeded(model(kind, **shape, **THIN)),
        pictures(32, 10),
        notes="BatchNorm: running statistics belong to the segment that makes them.",
        real=RealSize(
            precise, model(kind, **shape, hidden_sizes=widths, num_labels=1000), pictures(224, 1000)
        ),
    )


CASES = [
    Case(
        "vit",
        seeded(model("ViTForImageClassification", **VIT)),
        pictures(16, 10),
        tolerance=1e-5,
        notes=f"Dropout in and behind attention. {EVERYWHERE}",
        real=RealSize(
            "B/16 86M, 224 x 224",
            model("ViTForImageClassification", num_labels=1000, attn_implementation="sdpa"),
            pictures(224, 1000),
        ),
    ),
    resnet("resnet18", [2, 2, 2, 2], "basic", [64, 128, 256, 512], "11.7M, 224 x 224"),
    resnet("resnet50", [3, 4, 6, 3], "bottleneck", [256, 512, 1024, 2048], "25.6M, 224 x 224"),
    resnet("resnet101", [3, 4, 23, 3], "bottleneck", [256, 512, 1024, 2048], "44.5M, 224 x 224"),
]

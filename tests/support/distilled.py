"""Students with teachers: classifiers of vectors, and two tiny Llamas."""

from __future__ import annotations

from typing import Any

import torch
from tests.support import adapters
from torch import Tensor, nn

import farflung
from farflung.objectives import Distillation

CLASSES = 5
LENGTH = adapters.LENGTH


class Classifier(nn.Module):
    """Layers in a row, and scores by class."""

    def __init__(self, seed: int, classes: int = CLASSES, layers: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def vectors(count: int = 16) -> list[dict[str, Tensor]]:
    """Random vectors with random classes."""
    random = torch.Generator().manual_seed(6)
    return [
        {"x": torch.randn(8, generator=random), "labels": torch.randint(CLASSES, (), generator=random)}
        for _ in range(count)
    ]


def job(model: nn.Module | None = None, **changes: Any) -> farflung.Job:
    """A job that distils one classifier into another."""
    fields: dict[str, Any] = {
        "model": Distillation(Classifier(1), Classifier(2)) if model is None else model,
        "data": vectors(),
        "optimizer": farflung.AdamW(lr=1e-2),
        "batch": 8,
        "microbatches": 2,
        "steps": 3,
    }
    return farflung.Job(**{**fields, **changes})


def language_pair(tied: bool = False) -> tuple[nn.Module, nn.Module]:
    """A student of two layers and a teacher of four."""
    return adapters.base(1, layers=2, tied=tied), adapters.base(2, layers=4, tied=tied)


def language_job(tied: bool = False, **changes: Any) -> farflung.Job:
    """A job that distils one tiny Llama into another, on sentences whose first words are masked."""
    return job(Distillation(*language_pair(tied)), data=adapters.Sentences(), **changes)

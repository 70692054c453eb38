"""Pairs of answers made of random words, and jobs that teach a tiny adapter which ones are preferred."""

from __future__ import annotations

from typing import Any

import torch
from tests.support import adapters
from torch import nn

import farflung
from farflung.data import Pairs
from farflung.objectives import DPO

LENGTH = 14


def pairs(count: int = 16) -> list[dict[str, list[int]]]:
    """Prompts of 2 to 5 words; the chosen answers have other words than the rejected ones."""
    random = torch.Generator().manual_seed(2)

    def words(least: int, most: int) -> list[int]:
        length = int(torch.randint(2, 6, (), generator=random))
        return torch.randint(least, most, (length,), generator=random).tolist()

    half = adapters.WORDS // 2
    return [
        {"prompt": words(1, half), "chosen": words(1, half), "rejected": words(half, adapters.WORDS)}
        for _ in range(count)
    ]


def policy(layers: int = 3, tied: bool = True, config: Any = adapters.LORA) -> Any:
    """A tiny Llama with a fresh adapter, the same each time."""
    return adapters.with_adapter(adapters.base(layers=layers, tied=tied), config)


def job(model: nn.Module | None = None, **changes: Any) -> farflung.Job:
    """A job that trains `DPO` of the policy."""
    declared: dict[str, Any] = {
        "optimizer": farflung.AdamW(lr=3e-3),
        "batch": 8,
        "microbatches": 2,
        "steps": 3,
    }
    return farflung.Job(
        model=DPO(policy()) if model is None else model,
        data=pairs(),
        collate=Pairs(LENGTH),
        **{**declared, **changes},
    )

"""Jobs whose texts have mixed lengths: a GPT, and an encoder of transformers that classifies."""

from __future__ import annotations

from typing import Any

import torch
from examples.gpt import GPT, Config
from torch import Tensor, nn
from torch.nn import functional as F

import farflung

LENGTHS = (8, 16, 32)
SYMBOLS = 61


class Language(GPT):
    """The example's GPT, whose labels may be masked."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over the labels that are not -100; both (batch, length)."""
        found: Tensor = super().forward(input_ids, labels)
        return found


def texts(count: int = 48, longest: int = 32, seed: int = 1) -> list[dict[str, Tensor]]:
    """Random texts, three in four of at most a quarter of the longest; labels are the next symbols."""
    random = torch.Generator().manual_seed(seed)

    def one(number: int) -> dict[str, Tensor]:
        most = longest if number % 4 == 0 else longest // 4
        symbols = torch.randint(
            1, SYMBOLS, (int(torch.randint(3, most + 2, (), generator=random)),), generator=random
        )
        return {"input_ids": symbols[:-1], "labels": symbols[1:].clone()}

    return [one(number) for number in range(count)]


def language(lengths: Any = LENGTHS, **changes: Any) -> farflung.Job:
    """Four steps of a GPT with dropout-free blocks on such texts, evaluated on eight more."""
    torch.manual_seed(0)
    model = Language(Config(symbols=SYMBOLS, sequence=32, layers=4, heads=2, width=32))
    given: dict[str, Any] = {
        "model": model,
        "data": texts(),
        "validation": texts(8, seed=2),
        "collate": farflung.data.Pad(lengths),
        "counted": "labels",
        "batch": 8,
        "microbatches": 4,
        "steps": 4,
        "optimizer": farflung.AdamW(lr=1e-3),
        "clip": 1.0,
        "name": "lengths",
    }
    return farflung.Job(**(given | changes))


def classifier(lengths: Any = LENGTHS, **changes: Any) -> farflung.Job:
    """Four steps of a small BERT that tells whether a text has more even symbols than odd ones."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=SYMBOLS,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    items = []
    for one in texts():
        symbols = one["input_ids"]
        label = int((symbols % 2 == 0).sum() * 2 > len(symbols))
        items.append({"input_ids": symbols, "attention_mask": torch.ones_like(symbols), "labels": label})
    given: dict[str, Any] = {
        "model": BertForSequenceClassification(config),
        "data": items,
        "validation": items[:8],
        "collate": farflung.data.Pad(lengths),
        "batch": 8,
        "microbatches": 4,
        "steps": 4,
        "optimizer": farflung.AdamW(lr=1e-3),
        "name": "lengths",
    }
    return farflung.Job(**(given | changes))


class Positions(nn.Module):
    """Looks up a position for each symbol, of which it has a few."""

    def __init__(self, positions: int = 16) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, 8)
        self.positions = nn.Embedding(positions, 8)
        self.head = nn.Linear(8, SYMBOLS)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over the labels that are not -100."""
        x = self.symbols(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Table(Positions):
    """Takes a part of a table of positions, and makes a constant that depends on the length."""

    def __init__(self) -> None:
        super().__init__(LENGTHS[-1])

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over the labels that are not -100."""
        length = input_ids.shape[1]
        falling = torch.tensor([1.0 / (1 + place) for place in range(length)])
        x = self.symbols(input_ids) + self.positions.weight[:length] * falling[:, None]
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Branching(Positions):
    """Has one layer more for long texts."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.symbols(input_ids)
        if input_ids.shape[1] > 8:
            x = torch.tanh(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

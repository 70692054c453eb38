"""A language model of LSTM layers, which capture unrolls."""

from __future__ import annotations

import torch.nn.functional as F
from benchmarks.zoo.batches import SYMBOLS, WIDTH, texts
from benchmarks.zoo.case import Case, RealSize, seeded
from torch import Tensor, nn


class LSTM(nn.Module):
    """Predicts the next symbol."""

    def __init__(self, kinds: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.symbol = nn.Embedding(kinds, width)
        self.layers = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, kinds)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        states, _ = self.layers(self.symbol(tokens))
        return F.cross_entropy(self.head(states).flatten(0, 1), targets.flatten())


CASES = [
    Case(
        "lstm",
        seeded(lambda: LSTM(SYMBOLS, WIDTH, 4, 0.2)),
        texts(6, SYMBOLS),
        tolerance=1e-5,
        notes="Unrolled, with dropout between layers; eager runs a fused kernel that adds in another order.",
        real=RealSize(
            "2 LSTM layers of 650, 35 symbols", lambda: LSTM(10_000, 650, 2, 0.0), texts(35, 10_000)
        ),
    )
]

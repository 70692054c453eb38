"""BERT as published, pre-trained by masked words: learned positions, norms behind, a tied output table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NOT_COUNTED = -100


@dataclass(frozen=True)
class Sizes:
    """Of a BERT with the published vocabulary."""

    layers: int
    width: int
    heads: int
    sequence: int
    symbols: int = 30_522


class Block(nn.Module):
    """Attention in both directions and a perceptron, each added to the stream and then normed."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query = nn.Linear(sizes.width, sizes.width)
        self.key = nn.Linear(sizes.width, sizes.width)
        self.value = nn.Linear(sizes.width, sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)
        self.attention_norm = nn.LayerNorm(sizes.width)
        self.widen = nn.Linear(sizes.width, 4 * sizes.width)
        self.narrow = nn.Linear(4 * sizes.width, sizes.width)
        self.perceptron_norm = nn.LayerNorm(sizes.width)

    def _heads(self, x: Tensor) -> Tensor:
        batch, sequence, width = x.shape
        return x.view(batch, sequence, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._heads(part(x)) for part in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(query, key, value)
        x = self.attention_norm(x + self.out(y.transpose(1, 2).reshape(x.shape)))
        return self.perceptron_norm(x + self.narrow(F.gelu(self.widen(x))))


class BERT(nn.Module):
    """Says which words were masked, in sequences without padding; the next-sentence task is left out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.symbol = nn.Embedding(sizes.symbols, sizes.width)
        self.position = nn.Embedding(sizes.sequence, sizes.width)
        self.sentence = nn.Embedding(2, sizes.width)
        self.norm = nn.LayerNorm(sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.transform = nn.Linear(sizes.width, sizes.width)
        self.transform_norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.symbols)
        self.head.weight = self.symbol.weight

    def forward(self, tokens: Tensor, sentences: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.symbol(tokens) + self.position(places) + self.sentence(sentences))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.transform_norm(F.gelu(self.transform(x))))
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=NOT_COUNTED)

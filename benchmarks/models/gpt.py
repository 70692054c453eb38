"""GPT-2 and GPT-3 as published: learned positions, norms before, biases everywhere, a tied head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Of a GPT; the table of symbols is 50,257 as in the papers unless said otherwise."""

    layers: int
    width: int
    heads: int
    sequence: int
    symbols: int = 50_257


class Block(nn.Module):
    """Causal attention and a perceptron four times as wide, each behind a norm and beside the stream."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.attention_norm = nn.LayerNorm(sizes.width)
        self.query_key_value = nn.Linear(sizes.width, 3 * sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)
        self.perceptron_norm = nn.LayerNorm(sizes.width)
        self.widen = nn.Linear(sizes.width, 4 * sizes.width)
        self.narrow = nn.Linear(4 * sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, width = x.shape
        parts = self.query_key_value(self.attention_norm(x))
        heads = parts.view(batch, sequence, 3 * self.heads, width // self.heads).transpose(1, 2)
        query, key, value = heads.chunk(3, dim=1)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, sequence, width))
        inner = F.gelu(self.widen(self.perceptron_norm(x)), approximate="tanh")
        return x + self.narrow(inner)


class GPT(nn.Module):
    """Predicts the next symbol; returns the mean loss."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.symbol = nn.Embedding(sizes.symbols, sizes.width)
        self.position = nn.Embedding(sizes.sequence, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.symbols, bias=False)
        self.head.weight = self.symbol.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.symbol(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())

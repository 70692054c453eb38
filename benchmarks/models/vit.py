"""A vision transformer: patches as symbols, one more that collects, norms before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Of a vision transformer."""

    layers: int
    width: int
    heads: int
    side: int
    patch: int
    classes: int = 1000


class Block(nn.Module):
    """Attention in both directions and a perceptron, each behind a norm and beside the stream."""

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
        batch, places, width = x.shape
        parts = self.query_key_value(self.attention_norm(x))
        heads = parts.view(batch, places, 3 * self.heads, width // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(*heads.chunk(3, dim=1))
        x = x + self.out(y.transpose(1, 2).reshape(batch, places, width))
        return x + self.narrow(F.gelu(self.widen(self.perceptron_norm(x))))


class ViT(nn.Module):
    """Classifies pictures, (batch, 3, side, side)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, sizes.width, sizes.patch, stride=sizes.patch)
        self.collector = nn.Parameter(torch.zeros(1, 1, sizes.width))
        self.position = nn.Parameter(torch.zeros(1, 1 + (sizes.side // sizes.patch) ** 2, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.classes)

    def forward(self, pictures: Tensor, classes: Tensor) -> Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.collector.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]), classes)

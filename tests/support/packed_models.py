"""Language models that take packed rows: a Llama of transformers, and the example's GPT with a block mask."""

from __future__ import annotations

from typing import Any

import torch
from examples.gpt import GPT, Attention, Block, Config, rotate
from tests.support import adapters
from torch import Tensor, nn
from torch.nn import functional as F

from farflung.data import block_mask


def llama(use_cache: bool = False) -> nn.Module:
    """A tiny Llama; one that keeps a cache lets sequences see each other."""
    model = adapters.base(tied=False)
    model.config.use_cache = use_cache
    return model


class PackedGPT(GPT):
    """The example's GPT, on rows whose sequences begin where positions are 0."""

    def forward(self, tokens: Tensor, targets: Tensor, position_ids: Tensor) -> Tensor:  # type: ignore[override]
        """Mean loss over the targets that are not -100; all are integers, (batch, sequence)."""
        half = self.config.width // self.config.heads // 2
        frequencies = 10_000.0 ** (torch.arange(half) * (-1.0 / half))
        angles = (position_ids[..., None] * frequencies)[:, None]
        mask = block_mask(position_ids)
        x = self.symbol(tokens)
        for block in self.blocks:
            assert isinstance(block, Block)
            x = x + attended(block.attention, block.attention_norm(x), angles, mask)
            x = x + block.narrow(F.gelu(block.widen(block.perceptron_norm(x))))
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def attended(attention: Attention, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
    """The result of an attention with this mask; its own causal mask is not used."""
    batch, sequence, width = x.shape
    parts = attention.query_key_value(x).view(batch, sequence, 3 * attention.heads, width // attention.heads)
    query, key, value = parts.transpose(1, 2).chunk(3, dim=1)
    query, key = (rotate(part, angles.cos(), angles.sin()) for part in (query, key))
    y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return attention.out(y.transpose(1, 2).reshape(batch, sequence, width))


SMALL = Config(symbols=adapters.WORDS, sequence=24, layers=3, heads=2, width=32)


def gpt() -> nn.Module:
    """A tiny GPT of this kind."""
    torch.manual_seed(0)
    return PackedGPT(SMALL)


def sentences(count: int = 40, longest: int = 20) -> list[dict[str, Tensor]]:
    """Sentences of random words and lengths, the first two words of which are not to be learned."""
    random = torch.Generator().manual_seed(3)
    found = []
    for _ in range(count):
        length = int(torch.randint(4, longest + 1, (), generator=random))
        words = torch.randint(1, adapters.WORDS, (length,), generator=random)
        labels = words.clone()
        labels[:2] = -100
        found.append({"input_ids": words, "labels": labels})
    return found


def shifted(items: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The same sentences for a model that compares each place with its own target."""
    return [{"tokens": one["input_ids"][:-1], "targets": one["labels"][1:]} for one in items]


def rows_for(kind: str, length: int, **changes: Any) -> Any:
    """Sentences packed for the model `kind`."""
    from farflung.data import Pack

    if kind == "gpt":
        return Pack(shifted(sentences()), length, labels="targets", shift=False, **changes)
    return Pack(sentences(), length, **changes)

"""The example's GPT, and GPT-2 as Hugging Face wrote it: a tied head, a mask or the fused op, dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.zoo.batches import SEQUENCE, SYMBOLS, WIDTH, labelled_tokens, tokens
from benchmarks.zoo.case import Case, seeded
from examples.gpt import GPT, Config
from torch import Tensor, nn

TIED = "The head's weight is the embedding's: eager adds both uses in each microbatch, we add per segment."


def config(dropout: float = 0.0, layers: int = 4) -> Config:
    """A GPT small enough for a test."""
    return Config(symbols=SYMBOLS, sequence=SEQUENCE, layers=layers, heads=2, width=WIDTH, dropout=dropout)


class TiedGPT(GPT):
    """The example's GPT with its head's weight tied to the embedding's."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.head.weight = self.symbol.weight


class Conv1D(nn.Module):
    """GPT-2's linear layer: the weight is [in, out]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.02)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.size()[:-1], flat.size(-1))


class GPT2Attention(nn.Module):
    """Attention as Hugging Face wrote it: a buffer as causal mask, or the fused op."""

    def __init__(self, width: int, heads: int, dropout: float, fused: bool) -> None:
        super().__init__()
        mask = torch.tril(torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool)).view(1, 1, SEQUENCE, SEQUENCE)
        self.register_buffer("bias", mask, persistent=False)
        self.heads, self.width, self.fused, self.rate = heads, width, fused, dropout
        self.c_attn = Conv1D(width, 3 * width)
        self.c_proj = Conv1D(width, width)
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, self.width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split(part) for part in self.c_attn(x).split(self.width, dim=2))
        if self.fused:
            rate = self.rate if self.training else 0.0
            y = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        else:
            y = self._attend(query, key, value)
        merged = y.transpose(1, 2).contiguous().view(*x.shape)
        return self.resid_dropout(self.c_proj(merged))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = torch.matmul(query, key.transpose(-1, -2)) / (value.size(-1) ** 0.5)
        length = query.size(-2)
        causal = self.bias[:, :, :length, :length]
        least = torch.full([], torch.finfo(weights.dtype).min, dtype=weights.dtype, device=weights.device)
        weights = torch.where(causal, weights.to(weights.dtype), least)
        weights = F.softmax(weights, dim=-1).type(value.dtype)
        return torch.matmul(self.attn_dropout(weights), value)


class GPT2Block(nn.Module):
    """One GPT-2 layer."""

    def __init__(self, width: int, heads: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = GPT2Attention(width, heads, dropout, fused)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = Conv1D(width, 4 * width)
        self.c_proj = Conv1D(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(self.ln_1(x)) + x
        inner = self.c_fc(self.ln_2(x))
        inner = 0.5 * inner * (1.0 + torch.tanh(0.7978845608 * (inner + 0.044715 * torch.pow(inner, 3.0))))
        return x + self.dropout(self.c_proj(inner))


class GPT2(nn.Module):
    """HF-style GPT-2: tied `wte` and `lm_head`, dropout everywhere, labels shifted inside, a dict out."""

    def __init__(self, dropout: float, fused: bool, layers: int = 3) -> None:
        super().__init__()
        self.wte = nn.Embedding(SYMBOLS, WIDTH)
        self.wpe = nn.Embedding(SEQUENCE, WIDTH)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(GPT2Block(WIDTH, 2, dropout, fused) for _ in range(layers))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, SYMBOLS, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        positions = torch.arange(0, input_ids.shape[-1], device=input_ids.device).unsqueeze(0)
        x = self.drop(self.wte(input_ids) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        loss = F.cross_entropy(logits.view(-1, SYMBOLS).float(), shifted.view(-1), ignore_index=-100)
        return {"loss": loss, "logits": logits}


def _gpt2(name: str, dropout: float, fused: bool) -> Case:
    return Case(name, seeded(lambda: GPT2(dropout, fused)), labelled_tokens, tolerance=1e-5, notes=TIED)


CASES = [
    Case("gpt", seeded(lambda: GPT(config())), tokens),
    Case("gpt-dropout", seeded(lambda: GPT(config(0.15))), tokens),
    Case("gpt-tied", seeded(lambda: TiedGPT(config())), tokens, tolerance=1e-5, notes=TIED),
    _gpt2("gpt2-mask", 0.0, fused=False),
    _gpt2("gpt2-mask-dropout", 0.1, fused=False),
    _gpt2("gpt2-fused", 0.0, fused=True),
    _gpt2("gpt2-fused-dropout", 0.15, fused=True),
]

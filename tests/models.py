"""The models that tests capture, cut and train; each with a maker of random batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from examples.gpt import GPT, Config
from torch import Tensor, nn

Batch = dict[str, Tensor]
SYMBOLS = 61
SEQUENCE = 12
WIDTH = 16


@dataclass(frozen=True)
class Case:
    """A model by name: `build()` seeds and makes it, `batch(samples, seed)` makes a batch.

    `summed_twice` says that a value or parameter is used in several places, so that cutting between the uses
    sums the same gradients in another order than one autograd run does.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int, int], Batch]
    summed_twice: bool = False
    most_workers: int = 4


def tokens(samples: int, seed: int) -> Batch:
    """Random symbols and random targets, (samples, SEQUENCE)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (samples, SEQUENCE)
    return {
        "tokens": torch.randint(0, SYMBOLS, shape, generator=generator),
        "targets": torch.randint(0, SYMBOLS, shape, generator=generator),
    }


def labelled_tokens(samples: int, seed: int) -> Batch:
    """As Hugging Face names them; a few labels are not counted."""
    batch = tokens(samples, seed)
    labels = batch["targets"].clone()
    labels[:, 3] = -100
    return {"input_ids": batch["tokens"], "labels": labels}


def images(samples: int, seed: int) -> Batch:
    """Random pictures, (samples, 3, 16, 16), and their classes."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "pixels": torch.randn(samples, 3, 16, 16, generator=generator),
        "classes": torch.randint(0, 10, (samples,), generator=generator),
    }


def vectors(samples: int, seed: int) -> Batch:
    """Random vectors, (samples, WIDTH), and what to regress them to."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(samples, WIDTH, generator=generator),
        "y": torch.randn(samples, WIDTH, generator=generator),
    }


def masked_pairs(samples: int, seed: int) -> Batch:
    """Two float inputs and a mask of which of their positions count."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(samples, SEQUENCE, generator=generator) < 0.7
    mask[:, 0] = True
    return {
        "left": torch.randn(samples, SEQUENCE, WIDTH, generator=generator),
        "right": torch.randn(samples, SEQUENCE, WIDTH, generator=generator),
        "mask": mask,
    }


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


class BasicBlock(nn.Module):
    """ResNet's: two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """ResNet-18's shape, thin: a strided stem, four stages of two blocks, a pooled classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=1, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        widths = (4, 4, 8, 8, 12, 12, 16, 16)
        strides = (1, 1, 2, 1, 2, 1, 2, 1)
        blocks, before = [], 4
        for width, stride in zip(widths, strides, strict=True):
            blocks.append(BasicBlock(before, width, stride))
            before = width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(before, 10)

    def forward(self, pixels: Tensor, classes: Tensor) -> Tensor:
        x = torch.flatten(self.pool(self.blocks(self.stem(pixels))), 1)
        return F.cross_entropy(self.fc(x), classes)


class Chain(nn.Module):
    """Layers in a row, each value used once: no sum has two orders."""

    def __init__(self, layers: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return F.mse_loss(x, y)


class LongSkip(nn.Module):
    """The first layer's result is used by every later layer, and again before the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.last = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        skip = torch.tanh(self.first(x))
        z = skip
        for layer in self.layers:
            z = torch.tanh(layer(z)) + skip
        return F.mse_loss(self.last(torch.cat([z, skip], dim=1)), y)


class Frozen(Chain):
    """The first layer and one in the middle are not trained."""

    def __init__(self) -> None:
        super().__init__(layers=7)
        for layer in (self.layers[0], self.layers[3]):
            layer.requires_grad_(False)


class SharedModule(nn.Module):
    """One layer is applied twice in a row, in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.after = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in (*self.before, self.shared, self.shared, *self.after):
            x = torch.tanh(layer(x))
        return F.mse_loss(x, y)


class MaskedPair(nn.Module):
    """Two float inputs and a mask that the first and the last part both read."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(WIDTH, WIDTH)
        self.right = nn.Linear(WIDTH, WIDTH)
        self.mixers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, left: Tensor, right: Tensor, mask: Tensor) -> Tensor:
        weight = mask.unsqueeze(-1).to(left.dtype)
        z = self.left(left) * weight + self.right(right)
        for mixer in self.mixers:
            z = torch.relu(mixer(z))
        errors = ((z - right) ** 2).mean(dim=-1).masked_fill(~mask, 0.0)
        return errors.sum() / mask.sum()


class Normalised(nn.Module):
    """BatchNorm over vectors, with and without running statistics, and a counter that the model keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(WIDTH, momentum=0.2, track_running_stats=at != 2) for at in range(4)
        )
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean_input", torch.zeros(WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
            with torch.no_grad():
                self.mean_input.mul_(0.9).add_(x.mean(dim=0), alpha=0.1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.relu(norm(layer(x)))
        return F.mse_loss(x, y)


def _seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(11)
        return make()

    return build


def config(dropout: float = 0.0, layers: int = 4) -> Config:
    """A GPT small enough for a test."""
    return Config(symbols=SYMBOLS, sequence=SEQUENCE, layers=layers, heads=2, width=WIDTH, dropout=dropout)


CASES = [
    Case("gpt", _seeded(lambda: GPT(config())), tokens),
    Case("gpt-dropout", _seeded(lambda: GPT(config(0.15))), tokens),
    Case("gpt-tied", _seeded(lambda: TiedGPT(config())), tokens, summed_twice=True),
    Case("gpt2-mask", _seeded(lambda: GPT2(0.0, fused=False)), labelled_tokens, summed_twice=True),
    Case("gpt2-mask-dropout", _seeded(lambda: GPT2(0.1, fused=False)), labelled_tokens, summed_twice=True),
    Case("gpt2-fused", _seeded(lambda: GPT2(0.0, fused=True)), labelled_tokens, summed_twice=True),
    Case("gpt2-fused-dropout", _seeded(lambda: GPT2(0.15, fused=True)), labelled_tokens, summed_twice=True),
    Case("resnet", _seeded(ResNet), images),
    Case("chain", _seeded(Chain), vectors),
    Case("long-skip", _seeded(LongSkip), vectors, summed_twice=True),
    Case("frozen", _seeded(Frozen), vectors),
    Case("shared-module", _seeded(SharedModule), vectors, summed_twice=True),
    Case("masked-pair", _seeded(MaskedPair), masked_pairs),
    Case("batch-norm", _seeded(Normalised), vectors),
]


def case(name: str) -> Case:
    """The case called `name`."""
    return next(found for found in CASES if found.name == name)

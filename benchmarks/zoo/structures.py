"""Structures that a cut must get right, each alone: chains, skips, frozen and shared layers, buffers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.zoo.batches import WIDTH, masked_pairs, vectors
from benchmarks.zoo.case import Case, seeded
from torch import Tensor, nn


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


class SharedBuffer(Chain):
    """Every layer reads one buffer, which nothing changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x * self.scale))
        return F.mse_loss(x, y)


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


CASES = [
    Case("chain", seeded(Chain), vectors),
    Case(
        "long-skip",
        seeded(LongSkip),
        vectors,
        tolerance=1e-5,
        notes="One value has readers in every segment: their gradients are added in another order.",
    ),
    Case("frozen", seeded(Frozen), vectors, notes="Two layers are not trained."),
    Case(
        "shared-module",
        seeded(SharedModule),
        vectors,
        tolerance=1e-5,
        notes="One layer is used twice: its gradients are added per segment.",
    ),
    Case("masked-pair", seeded(MaskedPair), masked_pairs, notes="Two float inputs and a boolean one."),
    Case("shared-buffer", seeded(SharedBuffer), vectors, notes="Every segment holds one buffer."),
    Case("batch-norm", seeded(Normalised), vectors, notes="Buffers of three kinds are written."),
]

"""A job that is small, can be cut, and fails where a test wants it to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from farflung.client.api.job import Job
from farflung.data import SampleOrder
from farflung.runtime.optimizers.declared import SGD

BATCH, MICROBATCHES, SEED = 8, 2, 3


class Chain(nn.Module):
    """Layers in a row and a mean squared error."""

    def __init__(self, layers: int = 6, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return ((x - y) ** 2).mean()


class Normed(nn.Module):
    """Two layers with BatchNorm between them, which keeps running statistics."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.norm, self.last = (
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return ((self.last(torch.tanh(self.norm(self.first(x)))) - y) ** 2).mean()


class Vectors:
    """Random vectors and what is to be made of them; item `poisoned` is not a number, `broken` raises."""

    def __init__(self, poisoned: int = -1, broken: int = -1, width: int = 16) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(400, width, generator=generator)
        self.y = 0.5 * self.x.roll(1, dims=1)
        if poisoned >= 0:
            self.x[poisoned] = float("nan")
        self.broken = broken

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index == self.broken:
            raise OSError("the file is gone")
        return {"x": self.x[index], "y": self.y[index]}


def item_of_step(step: int) -> int:
    """An item that step `step`, counted from 0, trains on, and none before it."""
    return SampleOrder(400, BATCH, SEED).indices(step)[0]


def job(steps: int = 6, data: Vectors | None = None, **changes: Any) -> Job:
    torch.manual_seed(1)
    fields: dict[str, Any] = {
        "model": Chain(),
        "data": data or Vectors(),
        "optimizer": SGD(lr=0.5, momentum=0.5),
        "batch": BATCH,
        "microbatches": MICROBATCHES,
        "steps": steps,
        "seed": SEED,
        "name": "chain",
    }
    return Job(**{**fields, **changes})

"""The jobs of `benchmarks/hostile`: `job` has steps that wait for links and the broker, not for data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import farflung

LAYERS, ITEMS = 8, 256


class Net(nn.Module):
    """A chain of layers that learns to reverse a row of numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean squared error for rows `x` and targets `y`, both float32 [samples, width]."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(x, y)


def of_width(width: int, batch: int) -> farflung.Job:
    """AdamW, four microbatches."""
    torch.manual_seed(1)
    rows = torch.sin(torch.arange(float(width)) * (1 + torch.arange(float(ITEMS))[:, None] / ITEMS))
    return farflung.Job(
        model=Net(width), data=[{"x": row, "y": row.flip(0)} for row in rows],
        optimizer=farflung.AdamW(lr=3e-3), batch=batch, microbatches=4, steps=1_000_000,
    )  # fmt: skip


def job() -> farflung.Job:
    """Four rows of 64 numbers in a microbatch: about 60 steps a second on two workers of one machine."""
    return of_width(width=64, batch=16)

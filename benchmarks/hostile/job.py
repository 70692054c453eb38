"""The job of `benchmarks/hostile`: a small model whose steps wait for links and the broker, not for data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import farflung

WIDTH, LAYERS, ITEMS = 64, 8, 256


class Net(nn.Module):
    """A chain of layers that learns to reverse a row of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean squared error for rows `x` and targets `y`, both float32 [samples, WIDTH]."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(x, y)


def job() -> farflung.Job:
    """AdamW, four microbatches of four rows."""
    torch.manual_seed(1)
    rows = torch.sin(torch.arange(float(WIDTH)) * (1 + torch.arange(float(ITEMS))[:, None] / ITEMS))
    return farflung.Job(
        model=Net(), data=[{"x": row, "y": row.flip(0)} for row in rows],
        optimizer=farflung.AdamW(lr=3e-3), batch=16, microbatches=4, steps=1_000_000,
    )  # fmt: skip

"""The job of `benchmarks/chaos`: a small model with dropout and batch norm; data take a moment to read."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

import farflung

WIDTH, LAYERS, ITEMS = 32, 10, 256
ITEM_SECONDS = 0.004  # so that a fault happens in the middle of a step


class Net(nn.Module):
    """A chain of layers that learns to reverse a row of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(LAYERS))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean squared error for rows `x` and targets `y`, both float32 [samples, WIDTH]."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = self.dropout(torch.tanh(norm(layer(x))))
        return nn.functional.mse_loss(x, y)


class Items:
    """Rows and their reversal."""

    seconds = ITEM_SECONDS

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        time.sleep(self.seconds)
        x = torch.sin(torch.arange(float(WIDTH)) * (1 + index / ITEMS))
        return {"x": x, "y": x.flip(0)}


def job() -> farflung.Job:
    """AdamW with clipping, four microbatches, and an evaluation now and then."""
    torch.manual_seed(1)
    return farflung.Job(
        model=Net(), data=Items(), validation=Items(), validate_every=15, validation_batches=2,
        optimizer=farflung.AdamW(lr=3e-3), clip=1.0, batch=16, microbatches=4, steps=100,
    )  # fmt: skip

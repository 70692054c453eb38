"""The job of `benchmarks/saboteurs`: a small model whose data take a moment to read."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

import farflung

WIDTH, LAYERS, ITEMS = 8, 6, 64
ITEM_SECONDS = 0.002  # so that copies of the state are made and checked while it trains


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


class Items:
    """Rows and their reversal."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        time.sleep(ITEM_SECONDS)
        x = torch.sin(torch.arange(float(WIDTH)) + index)
        return {"x": x, "y": x.flip(0)}


def job(steps: int, verify: float, microbatches: int = 2) -> farflung.Job:
    """AdamW with clipping, so that a false norm matters; a batch of eight rows."""
    torch.manual_seed(1)
    return farflung.Job(
        model=Net(), data=Items(), optimizer=farflung.AdamW(lr=1e-2), clip=0.1, batch=8,
        microbatches=microbatches, steps=steps, verify=verify, name="net",
    )  # fmt: skip

"""Torch's own optimizers from their declarations: what ours is held beside."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from farflung.runtime.optimizer import AdamW, Optimizer, learning_rate


def build(optimizer: Optimizer, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Torch's optimizer over `parameters` (at least one), at the rate of step 0."""
    rate = learning_rate(optimizer, 0)
    if isinstance(optimizer, AdamW):
        return torch.optim.AdamW(
            parameters,
            lr=rate,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )
    return torch.optim.SGD(
        parameters,
        lr=rate,
        momentum=optimizer.momentum,
        dampening=optimizer.dampening,
        weight_decay=optimizer.weight_decay,
        nesterov=optimizer.nesterov,
    )


def set_learning_rate(built: torch.optim.Optimizer, optimizer: Optimizer, step: int) -> None:
    """Give what `build` returned the rate of step `step`, counted from 0."""
    for group in built.param_groups:
        group["lr"] = learning_rate(optimizer, step)

"""Updates of parameters on a device: one kernel for many parameters, because each launch costs microseconds.

The rounding differs from that of `torch.optim` on a CPU in the last bits, as it does in torch's own fused
optimizers, whose kernels these are. With the same kernels the bits are repeatable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from farflung.runtime.optimizers.declared import SGD, AdamW, Recipe


class Due(NamedTuple):
    """A parameter with its gradient, its slots but the count of updates, and that count."""

    parameter: Tensor
    gradient: Tensor
    slots: dict[str, Tensor]
    updates: int


def update(recipe: Recipe, due: Sequence[Due], rate: float) -> None:
    """Update the parameters and their slots in place, at the rate `rate`; missing slots are made.

    The recipe's rule is AdamW or SGD.
    """
    declared, decay = recipe.declared, recipe.weight_decay
    assert isinstance(declared, AdamW | SGD)
    slots = _slots(declared)
    groups: dict[tuple[int, torch.dtype], list[Due]] = {}
    for each in due:
        for slot in slots:
            if slot not in each.slots:
                each.slots[slot] = torch.zeros_like(each.parameter)
        groups.setdefault((each.updates, each.parameter.dtype), []).append(each)
    for (updates, _), group in groups.items():
        if isinstance(declared, AdamW):
            _adamw(declared, decay, group, updates, rate)
        else:
            _sgd(declared, decay, group, updates, rate)


def _slots(declared: AdamW | SGD) -> tuple[str, ...]:
    """The slots that are tensors on the device."""
    if isinstance(declared, AdamW):
        return "exp_avg", "exp_avg_sq"
    return ("momentum_buffer",) if declared.momentum else ()


def _gradients(group: Sequence[Due]) -> list[Tensor]:
    """The gradients, in the memory order of their parameters: the kernels read all of them alike."""
    return [
        each.gradient
        if each.gradient.stride() == each.parameter.stride()
        else torch.empty_like(each.parameter).copy_(each.gradient)
        for each in group
    ]


def _adamw(declared: AdamW, decay: float, group: Sequence[Due], updates: int, rate: float) -> None:
    parameters = [each.parameter for each in group]
    step = torch.full((), updates + 1, dtype=torch.float32, device=parameters[0].device)
    torch._fused_adamw_(
        parameters,
        _gradients(group),
        [each.slots["exp_avg"] for each in group],
        [each.slots["exp_avg_sq"] for each in group],
        [],
        [step] * len(group),
        lr=rate,
        beta1=declared.betas[0],
        beta2=declared.betas[1],
        weight_decay=decay,
        eps=declared.eps,
        amsgrad=False,
        maximize=False,
    )


def _sgd(declared: SGD, decay: float, group: Sequence[Due], updates: int, rate: float) -> None:
    torch._fused_sgd_(
        [each.parameter for each in group],
        _gradients(group),
        [each.slots["momentum_buffer"] for each in group] if declared.momentum else [],
        weight_decay=decay,
        momentum=declared.momentum,
        lr=rate,
        dampening=declared.dampening,
        nesterov=declared.nesterov,
        maximize=False,
        is_first_step=updates == 0,
    )

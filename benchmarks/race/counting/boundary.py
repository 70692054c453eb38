"""A stock pipeline's boundaries in bf16 or int8, as its user would write them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

Kind = Literal["dense", "bf16", "int8"]
KINDS: tuple[Kind, ...] = ("dense", "bf16", "int8")
LARGEST = 127


def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the last dimension as int8 of -127 to 127, and the float32 scale of each (..., 1)."""
    scale = x.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / LARGEST
    return (x / scale).round().to(torch.int8), scale


def written(x: Tensor, kind: Kind) -> Tensor:
    """What the other side reads of float32 rows."""
    if kind == "bf16":
        return x.to(torch.bfloat16).to(torch.float32)
    if kind == "int8":
        numbers, scale = scaled(x)
        return numbers * scale
    return x


class Boundary(torch.autograd.Function):
    """An activation as the next stage reads it; its gradient comes back as the stage before reads it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kind: Kind) -> Tensor:
        ctx.kind = kind
        return written(x, kind)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return written(gradients[0], ctx.kind), None

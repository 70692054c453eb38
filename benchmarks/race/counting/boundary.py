"""A stock pipeline's boundaries in bf16 or int8, as its user would write them.

bf16 needs one cast on each side: autograd casts the gradient, too. For int8 a row of the last dimension is
packed into a quarter as many float32 and one more, its scale; gradients travel back in the same form.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

Kind = Literal["dense", "bf16", "int8"]
KINDS: tuple[Kind, ...] = ("dense", "bf16", "int8")
LARGEST = 127


def leaves(x: Tensor, kind: Kind) -> Tensor:
    """What a stage sends of float32 rows; int8 needs a multiple of 4 in each."""
    if kind == "bf16":
        return x.to(torch.bfloat16)
    if kind == "int8":
        packed: Tensor = _Leaves.apply(x)  # type: ignore[no-untyped-call]
        return packed
    return x


def arrives(sent: Tensor, kind: Kind) -> Tensor:
    """The float32 rows that the next stage makes of it."""
    if kind == "int8":
        rows: Tensor = _Arrives.apply(sent)  # type: ignore[no-untyped-call]
        return rows
    return sent.to(torch.float32) if kind == "bf16" else sent


def packed(x: Tensor) -> Tensor:
    """Rows as int8 of -127 to 127 and the float32 scale of each, in the bits of float32: (..., n / 4 + 1)."""
    tiny = torch.finfo(torch.float32).tiny
    scale = x.abs().amax(-1, keepdim=True).clamp_min(tiny) / LARGEST
    numbers = (x / scale).round().to(torch.int8)
    return torch.cat((numbers.view(torch.float32), scale), -1)


def unpacked(sent: Tensor) -> Tensor:
    """The rows of what `packed` gave."""
    numbers, scale = sent[..., :-1].contiguous(), sent[..., -1:]
    return numbers.view(torch.int8) * scale


class _Leaves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return packed(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return unpacked(gradients[0])


class _Arrives(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sent: Tensor) -> Tensor:
        return unpacked(sent)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return packed(gradients[0])

"""A stage of a baseline on an emulated device: takes the time, sends the bytes, and computes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import stage as pipelining

from farflung.runtime.emulated.backend import EmulatedDevice

BACKWARD_FACTOR = 2  # gradients of inputs and of weights cost about as much as a forward pass each


class SleepingStage(nn.Module):
    """Takes `flops` forward operations a microbatch and twice as many back; gives tensors of `shape`."""

    def __init__(
        self,
        device: EmulatedDevice,
        flops: float,
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self._device = device
        self._flops = flops
        self._form = shape, dtype
        self.weight = nn.Parameter(torch.zeros(()))  # what makes an output need a gradient

    def forward(self, x: Tensor) -> Tensor:
        """Anything in; zeros out, when the time is over."""
        made: Tensor = _Sleep.apply(x, self.weight, self._device, self._flops, self._form)  # type: ignore[no-untyped-call]
        return made


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        device: EmulatedDevice,
        flops: float,
        form: tuple[tuple[int, ...], torch.dtype],
    ) -> Tensor:
        ctx.device, ctx.flops = device, flops
        ctx.received = (x.shape, x.dtype) if x.is_floating_point() else None
        device.work(flops)
        shape, dtype = form
        return torch.zeros(shape, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.device.work(BACKWARD_FACTOR * ctx.flops)
        answered = None
        if ctx.received is not None:
            shape, dtype = ctx.received
            answered = torch.zeros(shape, dtype=dtype)
        return answered, torch.zeros(()), None, None, None


def share_buffers() -> None:
    """Let all of a rank's microbatches be received into the same memory, since none of them is read.

    A real device holds them all; eight ranks on one machine would need as much memory as eight devices.
    """
    make: Callable[..., Tensor] = pipelining._make_tensor_from_meta
    known: dict[tuple[torch.Size, torch.dtype], Tensor] = {}

    def shared(*arguments: Any, **named: Any) -> Tensor:
        made = make(*arguments, **named)
        first = known.setdefault((made.shape, made.dtype), made)
        return first.detach()  # another tensor of the same memory, with a gradient of its own

    pipelining._make_tensor_from_meta = shared

"""`Blocked` and `Bfloat16` on a device: see `codec.families.blocked` and `codec.families.dense`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from farflung.codec import Blocked, Context
from farflung.codec.encoding.noise import Noise
from farflung.codec.encoding.payload import Reader, read_scales
from farflung.codec.families.blocked import LEAST_SCALE, MAGIC, MOST, SHRINK
from farflung.runtime.torch_backend.codecs.tensors import (
    Written,
    as_scales,
    draws,
    from_bfloat16,
    in_blocks,
    packed,
    to_device,
)


def write_blocked(codec: Blocked, numbers: Tensor, context: Context) -> Written:
    """Scales and integers of flat float32 `numbers`."""
    rows = in_blocks(numbers, codec.block)
    largest = rows.abs().amax(1)
    # A tensor, as torch multiplies by the reciprocal of a Python number on some devices, which rounds twice.
    divisor = torch.full_like(largest, float(codec.levels * SHRINK))
    scales = largest / divisor
    stored = torch.where(scales < float(LEAST_SCALE), 0, (scales.view(torch.int32) >> 16) + 1)
    inverses = torch.where(stored != 0, as_scales(stored).reciprocal(), 0.0)
    scaled = rows * inverses[:, None]
    if codec.stochastic:
        windows = Noise(context.seed, scaled.numel()).dither_windows(scaled.numel())
        scaled += draws(windows, scaled.numel(), scaled.device).view_as(scaled)
    scaled += float(MAGIC) if codec.bits == 8 else float(MAGIC + 8)
    codes = (scaled.view(torch.int32) & 0xFF).to(torch.uint8).view(-1)
    parts = (stored.to(torch.int16), codes if codec.bits == 8 else packed(codes, 4))
    return Written(parts, (largest < float(MOST)).all())


def read_blocked(codec: Blocked, reader: Reader, elements: int, device: torch.device) -> Tensor:
    """The flat float32 numbers that `write_blocked` encoded."""
    blocks = -(-elements // codec.block)
    scales = to_device(read_scales(reader, blocks), device)
    codes = to_device(reader.take(np.uint8, blocks * codec.block * codec.bits // 8), device)
    if codec.bits == 8:
        numbers = codes.view(torch.int8).to(torch.float32)
    else:
        numbers = torch.stack((codes & 15, codes >> 4), 1).to(torch.float32) - 8
    return (numbers.view(blocks, codec.block) * scales[:, None]).view(-1)[:elements]


def write_bfloat16(numbers: Tensor) -> Written:
    """Flat float32 `numbers`, rounded to nearest even."""
    rounded = numbers.to(torch.bfloat16)
    return Written((rounded,), rounded.isfinite().all())


def read_bfloat16(reader: Reader, elements: int, device: torch.device) -> Tensor:
    """The flat float32 numbers that `write_bfloat16` encoded."""
    return from_bfloat16(to_device(reader.take(np.uint16, elements), device))

"""`Hadamard` on a device: see `codec.families.hadamard`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from farflung.codec import Context, Hadamard
from farflung.codec.encoding.payload import Reader, read_scales
from farflung.codec.families.hadamard import BLOCK, LEAST, MAGIC, Quantiser, quantiser
from farflung.runtime.torch_backend.codecs.tensors import Written, draws, in_blocks, packed, to_device


def write_hadamard(codec: Hadamard, numbers: Tensor, context: Context) -> Written:
    """Scales and codes of flat float32 `numbers`."""
    levels, rows = quantiser(codec.bits), in_blocks(numbers, BLOCK)
    rotated = rotate(rows * _signs(codec, context, rows))
    squares = (rotated * rotated).sum(1)
    # Tensors, as torch multiplies by the reciprocal of a Python number on some devices, which rounds twice.
    lengths = squares.clamp(min=float(LEAST)).sqrt()
    inverses = torch.full_like(lengths, float(levels.fine * np.float32(BLOCK**0.5))) / lengths
    scaled = rotated * inverses[:, None] + float(MAGIC)
    fine = (scaled.view(torch.int32) & 0xFF).view(-1)
    chosen = _table(levels.chosen, np.int8, fine)[fine].to(torch.float32).view_as(rows)
    planes = tuple(
        packed(_table(codes, np.uint8, fine)[fine], width)
        for codes, width in zip(levels.codes, levels.widths, strict=True)
    )
    scales = _scales(squares, (rotated * chosen).sum(1), None if codec.unbiased else (chosen * chosen).sum(1))
    stored = scales.to(torch.bfloat16)
    return Written((stored, *planes), squares.isfinite().all() & stored.isfinite().all())


def read_hadamard(
    codec: Hadamard, reader: Reader, elements: int, device: torch.device, context: Context
) -> Tensor:
    """The flat float32 numbers that `write_hadamard` encoded."""
    levels, blocks = quantiser(codec.bits), -(-elements // BLOCK)
    scales = to_device(read_scales(reader, blocks), device)
    numbers = _read_levels(levels, reader, blocks, device)
    # Levels are integers, so these sums are exact in any order.
    numbers = rotate(numbers) * scales[:, None]
    return (numbers * _signs(codec, context, numbers)).view(-1)[:elements]


def rotate(rows: Tensor) -> Tensor:
    """Rows of 64 times Sylvester's Hadamard matrix: sums and differences of pairs, in a fixed order."""
    for width in (2**stage for stage in range(6)):
        pairs = rows.view(-1, BLOCK // (2 * width), 2, width)
        left, right = pairs[:, :, 0], pairs[:, :, 1]
        rows = torch.stack((left + right, left - right), 2)
    return rows.view(-1, BLOCK)


def _signs(codec: Hadamard, context: Context, rows: Tensor) -> Tensor:
    elements = rows.numel()
    return draws(codec.noise(context, elements).sign_windows(elements), elements, rows.device).view_as(rows)


def _table(values: bytes, dtype: type[np.generic], like: Tensor) -> Tensor:
    return to_device(np.frombuffer(values, dtype), like.device)


def _read_levels(levels: Quantiser, reader: Reader, blocks: int, device: torch.device) -> Tensor:
    """(blocks, 64): the product of the levels of all planes."""
    numbers = torch.ones((), device=device)
    for table, width in zip(levels.tables, levels.widths, strict=True):
        codes = to_device(reader.take(np.uint8, blocks * BLOCK * width // 8), device)
        numbers = numbers * to_device(table, device)[codes.to(torch.int32)].view(blocks, BLOCK)
    return numbers


def _scales(squares: Tensor, products: Tensor, lengths: Tensor | None) -> Tensor:
    """See `codec.families.hadamard._scales`."""
    squares = torch.where(squares < float(LEAST), 0.0, squares)
    if lengths is None:
        return squares / (products.clamp(min=float(LEAST)) * BLOCK)
    return products / (lengths * BLOCK)

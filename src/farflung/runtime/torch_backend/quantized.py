"""Linear layer and embedding over a quantized matrix as ops of torch, in the namespace `farflung`.

Autograd keeps the codes and scales that the op was given, which are the worker's state anyway, and nothing of
the matrix that they stand for: the backward pass dequantizes it once more.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from farflung.opdag.quantized import DEQUANTIZED_AT_ONCE
from farflung.quantization import BLOCKS, NF4_LEVELS, SCALE_BYTES, block_bytes, values_in

_OWN_PAGES, _HUGE_PAGES = 2**18, 2**23
"""Bytes from which a matrix has pages of its own, and from which these are huge."""
_HUGE_PAGE = 2**21
_PAIR = torch.int64
"""A type as long as two values of float32."""

_SCHEMAS = (
    "quantized_linear(Tensor input, Tensor weight, str format, Tensor? bias=None, bool transposed=False)"
    " -> Tensor",
    "quantized_embedding(Tensor weight, Tensor indices, str format, ScalarType dtype) -> Tensor",
)


@cache
def register() -> torch.library.Library:
    """Register the ops with torch; more calls do nothing."""
    library = torch.library.Library("farflung", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    library.impl("quantized_linear", quantized_linear, "CompositeImplicitAutograd")
    library.impl("quantized_embedding", quantized_embedding, "CompositeImplicitAutograd")
    return library


def quantized_linear(
    input: Tensor, weight: Tensor, format: str, bias: Tensor | None = None, transposed: bool = False
) -> Tensor:
    """`F.linear(input, W, bias)`, bit for bit, where W is what `weight` stands for, in the type of `input`.

    Parameters
    ----------
    input
        Floating point, [..., in].
    weight
        uint8 [rows, bytes of a row], as `farflung.quantization` lays it out.
    transposed
        Whether W has its rows by input: [in, out] rather than [out, in].

    Raises
    ------
    ValueError
        `weight` has no whole blocks, or `input` is not floating point.
    """
    made: Tensor = _QuantizedLinear.apply(input, weight, bias, format, transposed)
    return made


def quantized_embedding(weight: Tensor, indices: Tensor, format: str, dtype: torch.dtype) -> Tensor:
    """`F.embedding(indices, W)`, bit for bit, where W is what `weight` stands for, in the type `dtype`.

    Parameters
    ----------
    weight
        uint8 [rows, bytes of a row], as `farflung.quantization` lays it out.
    indices
        Rows to look up, int32 or int64, [...].

    Raises
    ------
    ValueError
        `weight` has no whole blocks.
    """
    rows = F.embedding(indices.reshape(-1), weight)
    return dequantized(rows, format, dtype).view(*indices.shape, values_in(weight.shape[1], format))


def dequantized(weight: Tensor, format: str, dtype: torch.dtype) -> Tensor:
    """The matrix that codes and scales stand for, [rows, values of a row].

    Each value is one product of float32, rounded once more if `dtype` is shorter.

    Raises
    ------
    ValueError
        `weight` has no whole blocks.
    """
    size = block_bytes(format)
    if weight.dtype != torch.uint8 or weight.dim() != 2 or weight.shape[1] % size:
        raise ValueError(f"a {format} matrix is uint8 of rows of {size} bytes a block")
    rows, columns = weight.shape[0], values_in(weight.shape[1], format)
    made = _room(rows, columns, dtype, weight.device)
    step = min(rows, max(1, DEQUANTIZED_AT_ONCE // max(1, columns)))
    of_block = BLOCKS[format]
    piece = _Piece(step * columns // of_block, format, weight.device)
    for start in range(0, rows, step or 1):
        blocks = weight[start : start + step].reshape(-1, size)
        piece.write(blocks, made[start : start + step].view(-1, of_block))
    return made


class _Piece:
    """Memory for the values of `blocks` blocks, which are dequantized at a time."""

    def __init__(self, blocks: int, format: str, device: torch.device) -> None:
        values = BLOCKS[format]
        self._scale_bytes = SCALE_BYTES[format]
        self._levels = _room(blocks, values, torch.float32, device)
        self._bytes = None if format == "int8" else _room(blocks, values // 2, torch.int32, device)

    def write(self, blocks: Tensor, out: Tensor) -> None:
        """Write the values of blocks, uint8 [n, bytes of a block], to `out`, [n, values of a block]."""
        levels, codes = self._levels[: len(blocks)], blocks[:, self._scale_bytes :]
        scales = _scales(blocks, self._scale_bytes)
        if self._bytes is None:
            levels.copy_(codes.view(torch.int8))
        else:
            named = self._bytes[: len(blocks)].copy_(codes).view(-1)
            torch.index_select(_pairs(codes.device), 0, named, out=levels.view(-1).view(_PAIR))
        if out.dtype == torch.float32:
            torch.mul(levels, scales, out=out)
        else:
            out.copy_(levels.mul_(scales))


def _scales(blocks: Tensor, size: int) -> Tensor:
    """The scale of each block, stored in so many bytes, as float32 [blocks, 1]."""
    stored = blocks[:, :size]
    if stored.storage_offset() % size:  # torch views no bytes as longer numbers from there on
        stored = stored.clone(memory_format=torch.contiguous_format)
    return stored.view(torch.float32 if size == torch.float32.itemsize else torch.bfloat16).float()


def _room(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for a matrix that is needed for one op; on a host in pages of its own.

    In the heap it would leave a hole between tensors that live longer, which the next matrix does not fit.
    """
    size = rows * columns * dtype.itemsize
    if device.type != "cpu" or size < _OWN_PAGES:
        return torch.empty(rows, columns, dtype=dtype, device=device)
    return torch.frombuffer(_pages(size), dtype=dtype, count=rows * columns).view(rows, columns)


def _pages(size: int) -> mmap.mmap:
    """Fresh pages of at least `size` bytes, huge ones where Linux has them: each page costs a fault."""
    if sys.platform != "linux":
        return mmap.mmap(-1, size)
    is_large = size >= _HUGE_PAGES  # what is rounded up counts for little
    whole = -(-size // _HUGE_PAGE) * _HUGE_PAGE if is_large else size
    pages = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if is_large:
        with suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


@cache
def _pairs(device: torch.device) -> Tensor:
    """The two levels that each byte names, [256], each pair as one item: that is 12 times as fast to copy."""
    levels = torch.tensor(NF4_LEVELS, dtype=torch.float32)
    byte = torch.arange(256)
    return torch.stack([levels[byte & 15], levels[byte >> 4]], 1).view(_PAIR).view(-1).to(device)


class _QuantizedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, format: str, transposed: bool
    ) -> Tensor:
        if not input.is_floating_point():
            raise ValueError(f"a linear layer of {input.dtype}")
        ctx.save_for_backward(weight)
        ctx.format, ctx.transposed, ctx.dtype = format, transposed, input.dtype
        return F.linear(input, _matrix(weight, format, transposed, input.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        flat = gradient.reshape(-1, gradient.shape[-1])
        of_input = of_bias = None
        if ctx.needs_input_grad[0]:
            matrix = _matrix(weight, ctx.format, ctx.transposed, ctx.dtype)
            of_input = flat.mm(matrix).view(*gradient.shape[:-1], matrix.shape[1])
        if ctx.needs_input_grad[2]:
            of_bias = flat.sum(0)
        return of_input, None, of_bias, None, None


def _matrix(weight: Tensor, format: str, transposed: bool, dtype: torch.dtype) -> Tensor:
    """The matrix as [out, in]."""
    matrix = dequantized(weight, format, dtype)
    return matrix.t() if transposed else matrix

"""Ops that the opset lacks, written with ops that it has, where torch's own list does not say how.

The graph's values are those of the op up to rounding; the self-check compares them with the user's module.
Where torch leaves the order of equal entries open (`sort`, `median`), it may be another than eager's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._decomp import decomposition_table

from farflung.opdag.capture import resampling

_ATEN = torch.ops.aten
Composition = Callable[..., Any]


def _max_pool1d(
    self: Tensor,
    kernel_size: list[int],
    stride: list[int] | None = None,
    padding: list[int] | None = None,
    dilation: list[int] | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """Pool an image of one row."""
    made = _ATEN.max_pool2d.default(
        self.unsqueeze(-2),
        [1, *kernel_size],
        [1, *(stride or kernel_size)],
        [0, *(padding or [0])],
        [1, *(dilation or [1])],
        ceil_mode,
    )
    result: Tensor = made.squeeze(-2)
    return result


def _clamp(self: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """Pass the whole gradient at the limits."""
    if min is not None:
        self = torch.where(self < min, min, self)
    return self if max is None else torch.where(self > max, max, self)


def _empty(size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Tensor:
    """Memory that is filled in later; zeros until then, so that a graph never depends on chance."""
    return torch.zeros(list(size), dtype=dtype)


def _new_empty(self: Tensor, size: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return self.new_zeros(list(size), dtype=dtype)


def _empty_like(self: Tensor, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.zeros_like(self, dtype=dtype)


def _eye(n: int, m: int | None = None, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    across = torch.arange(n if m is None else m)
    return (torch.arange(n).unsqueeze(-1) == across).to(dtype or torch.get_default_dtype())


def _any(self: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    dims = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
    found = (self != 0).to(torch.int32)
    if any(self.shape[at] == 0 for at in dims or range(self.ndim)):  # nothing has no largest entry
        return found.sum(dims, keepdim).to(torch.bool)
    return found.amax(dims, keepdim).to(torch.bool)


def _argmin(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the order is reversed, the largest; integers lack the negative of one of theirs."""
    if self.is_floating_point():
        return (-self).argmax(dim, keepdim)
    return ((255 if self.dtype == torch.uint8 else -1) - self).argmax(dim, keepdim)


def _sort(self: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """All entries in order, as the best of all."""
    values, places = torch.topk(self, self.shape[dim] if self.ndim else 1, dim, descending)
    return values, places


def _kth(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest entry and its position."""
    found = [part.narrow(dim, k - 1, 1) for part in torch.topk(self, k, dim, False)]
    values, places = found if keepdim else [part.squeeze(dim) for part in found]
    return values, places


def _median(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower of the two in the middle."""
    return _kth(self, (self.shape[dim] + 1) // 2, dim, keepdim)


def _var_mean(
    self: Tensor, dim: list[int] | None = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = dim or list(range(self.ndim))
    return self.var(dims, correction=1 if correction is None else correction, keepdim=keepdim), self.mean(
        dims, keepdim
    )


def _diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """In a flattened matrix, entries of a diagonal lie one row length plus one apart."""
    high, wide = self.shape[dim1], self.shape[dim2]
    flat = self.movedim((dim1, dim2), (-2, -1)).flatten(-2)
    count = min(high, wide - offset) if offset >= 0 else min(high + offset, wide)
    start = offset if offset >= 0 else -offset * wide
    if count <= 0:
        return flat[..., :0]
    return flat[..., start : start + (count - 1) * (wide + 1) + 1 : wide + 1]


def _unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    dimension %= self.ndim
    count = (self.shape[dimension] - size) // step + 1
    places = torch.arange(count).unsqueeze(-1) * step + torch.arange(size)
    rows = self.index_select(dimension, places.flatten())
    return rows.unflatten(dimension, (count, size)).movedim(dimension + 1, -1)


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    """Distances of all pairs; their differences take memory for one vector a pair."""
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)


def _rounded(self: Tensor, other: Tensor | float, rounding_mode: str | None = None) -> Tensor:
    """Quotients rounded down, or toward zero."""
    if rounding_mode is None:
        return self / other
    dtype = torch.result_type(self, other)
    if not dtype.is_floating_point:
        return _whole_quotients(self.to(dtype), other, rounding_mode)
    if rounding_mode == "floor":
        made = ((self - torch.remainder(self, other)) / other).round()
    else:
        made = _trunc(self / other)
    return made.to(dtype)


def _whole_quotients(self: Tensor, other: Tensor | float, rounding_mode: str) -> Tensor:
    """Quotients of integers. Division is in float32: what its 24 bits leave over is divided again."""
    remainder = torch.remainder(self, other)
    left = self - remainder
    made = torch.zeros_like(left)
    for _ in range({1: 1, 2: 1, 4: 2}.get(self.dtype.itemsize, 3)):
        part = (left / other).round().to(left.dtype)
        made, left = made + part, left - part * other
    if rounding_mode == "floor":
        return made
    is_below = (remainder != 0) & ((self < 0) != (other < 0))
    return made + is_below.to(made.dtype)


def _trunc(self: Tensor) -> Tensor:
    return torch.where(self < 0, self.ceil(), self.floor())


OWN: dict[torch._ops.OperatorBase, Composition] = {
    _ATEN.max_pool1d.default: _max_pool1d,
    _ATEN.clamp.Tensor: _clamp,
    _ATEN.clamp_min.Tensor: _clamp,
    _ATEN.clamp_max.Tensor: lambda self, max: _clamp(self, max=max),
    _ATEN.isnan.default: lambda self: self != self,
    _ATEN.isinf.default: lambda self: self.abs() == math.inf,
    _ATEN.empty.memory_format: _empty,
    _ATEN.empty_permuted.default: _empty,
    _ATEN.new_empty.default: _new_empty,
    _ATEN.empty_like.default: _empty_like,
    _ATEN.eye.default: _eye,
    _ATEN.eye.m: _eye,
    _ATEN.any.default: _any,
    _ATEN.any.dim: _any,
    _ATEN.any.dims: _any,
    _ATEN.sort.default: _sort,
    _ATEN.median.dim: _median,
    _ATEN.kthvalue.default: _kth,
    _ATEN.argmin.default: _argmin,
    _ATEN.var_mean.correction: _var_mean,
    _ATEN.diagonal.default: _diagonal,
    _ATEN.unfold.default: _unfold,
    _ATEN._cdist_forward.default: _cdist,
    _ATEN._euclidean_dist.default: _cdist,
    _ATEN.div.Tensor_mode: _rounded,
    _ATEN.div.Scalar_mode: _rounded,
    _ATEN.trunc.default: _trunc,
    _ATEN.logical_xor.default: lambda self, other: (self != 0) != (other != 0),
    _ATEN._upsample_bilinear2d_aa.default: resampling.bilinear,
    _ATEN._upsample_bicubic2d_aa.default: resampling.bicubic,
    _ATEN.tan.default: lambda self: self.sin() / self.cos(),
    _ATEN.sinh.default: lambda self: (self.expm1() - (-self).expm1()) / 2,
    _ATEN.cosh.default: lambda self: (self.exp() + (-self).exp()) / 2,
    _ATEN.atanh.default: lambda self: (self.log1p() - (-self).log1p()) / 2,
    _ATEN.asin.default: lambda self: (self / (1 - self * self).sqrt()).atan(),
    _ATEN.acos.default: lambda self: math.pi / 2 - (self / (1 - self * self).sqrt()).atan(),
    _ATEN.exp2.default: lambda self: torch.pow(2.0, self),
    _ATEN.log10.default: lambda self: self.log() / math.log(10),
}
"""By op, a function of the op's own arguments."""


def _uniform(self: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    """One draw of `rand_like`, with eager's bits: both round product and sum at once, if the processor can.

    In 16 bits eager takes other bits of its generator, which the self-check then refuses.
    """
    kind = np.float64 if self.dtype == torch.float64 else np.float32
    span = float(kind(high) - kind(low))
    return torch.add(torch.full((), low, dtype=self.dtype), torch.rand_like(self), alpha=span)


DRAWN: dict[torch._ops.OperatorBase, Composition] = {_ATEN.uniform.default: _uniform}
"""Random ops that are written with another one, which draws the same numbers."""

OF_TORCH = (
    _ATEN.grid_sampler_2d.default,
    _ATEN._upsample_bilinear2d_aa.vec,
    _ATEN._upsample_bicubic2d_aa.vec,
    _ATEN.adaptive_max_pool2d.default,
)
"""Ops that torch knows how to write with others, but keeps in its own smallest set."""


def compositions() -> dict[torch._ops.OperatorBase, Composition]:
    """All of them, by op."""
    return {op: decomposition_table[op] for op in OF_TORCH if op in decomposition_table} | OWN | DRAWN

"""Arrays from numbers. Without an element type, PyTorch's default for the number is used."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from farflung.runtime.jax_backend.lowering import lowers
from farflung.runtime.jax_backend.promotion import FLOAT32, INT64, Number, is_floating, number_type, to

Array = jax.Array


def _filled(size: Sequence[int], value: Number, dtype: np.dtype) -> Array:
    if any(one < 0 for one in size):
        raise ValueError(f"size {list(size)}")
    return jnp.full(tuple(size), to(value, dtype))


@lowers("arange.default")
def arange(end: Number, dtype: np.dtype | None = None) -> Array:
    return arange_step(0, end, dtype=dtype)


@lowers("arange.start")
def arange_start(start: Number, end: Number, dtype: np.dtype | None = None) -> Array:
    return arange_step(start, end, dtype=dtype)


@lowers("arange.start_step")
def arange_step(start: Number, end: Number, step: Number = 1, dtype: np.dtype | None = None) -> Array:
    """Computed in int64, or in float64 and then rounded."""
    whole = all(isinstance(number, int) for number in (start, end, step))
    result = dtype or (INT64 if whole else FLOAT32)
    if not all(math.isfinite(number) for number in (start, end, step)) or step == 0:
        raise ValueError(f"from {start} to {end} by {step}")
    if (end - start) * step < 0:
        raise ValueError(f"{end} cannot be reached from {start} by {step}")
    count = -((start - end) // step) if whole else math.ceil((end - start) / step)
    wide = np.dtype(np.float64) if is_floating(result) else INT64
    begin, by = (number if is_floating(result) else int(number) for number in (start, step))
    return to(to(begin, wide) + lax.iota(wide, int(count)) * to(by, wide), result)


@lowers("full.default")
def full(size: Sequence[int], fill_value: Number, dtype: np.dtype | None = None) -> Array:
    return _filled(size, fill_value, dtype or number_type(fill_value))


@lowers("zeros.default")
def zeros(size: Sequence[int], dtype: np.dtype | None = None) -> Array:
    return _filled(size, 0, dtype or FLOAT32)


@lowers("ones.default")
def ones(size: Sequence[int], dtype: np.dtype | None = None) -> Array:
    return _filled(size, 1, dtype or FLOAT32)


@lowers("scalar_tensor.default")
def scalar_tensor(s: Number, dtype: np.dtype | None = None) -> Array:
    return to(s, dtype or FLOAT32)


@lowers("new_full.default")
def new_full(self: Array, size: Sequence[int], fill_value: Number, dtype: np.dtype | None = None) -> Array:
    return _filled(size, fill_value, dtype or self.dtype)


@lowers("new_zeros.default")
def new_zeros(self: Array, size: Sequence[int], dtype: np.dtype | None = None) -> Array:
    return _filled(size, 0, dtype or self.dtype)


@lowers("new_ones.default")
def new_ones(self: Array, size: Sequence[int], dtype: np.dtype | None = None) -> Array:
    return _filled(size, 1, dtype or self.dtype)


@lowers("full_like.default")
def full_like(self: Array, fill_value: Number, dtype: np.dtype | None = None) -> Array:
    return _filled(self.shape, fill_value, dtype or self.dtype)


@lowers("zeros_like.default")
def zeros_like(self: Array, dtype: np.dtype | None = None) -> Array:
    return _filled(self.shape, 0, dtype or self.dtype)


@lowers("ones_like.default")
def ones_like(self: Array, dtype: np.dtype | None = None) -> Array:
    return _filled(self.shape, 1, dtype or self.dtype)

"""Sums, means, extremes, softmax."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from farflung.runtime.jax_backend.lowering import axes_of, axis_of, lowers
from farflung.runtime.jax_backend.lowerings.elementwise import absolute
from farflung.runtime.jax_backend.promotion import (
    BOOL,
    INT64,
    Number,
    accumulation_type,
    compute_type,
    floating_type,
    is_floating,
    result_type,
    to,
)

Array = jax.Array
Dims = Sequence[int] | None

MOST_DIFFERENCES = 64
"""Limit on repeated differences: each repetition is an op of its own."""


@lowers("sum.default", "sum.dim_IntList")
def total(self: Array, dim: Dims = None, keepdim: bool = False, dtype: np.dtype | None = None) -> Array:
    result = dtype or (self.dtype if is_floating(self.dtype) else INT64)
    wide = to(self, accumulation_type(result) if is_floating(result) else result)
    return to(jnp.sum(wide, axes_of(self, dim), keepdims=keepdim, dtype=wide.dtype), result)


@lowers("mean.default", "mean.dim")
def mean(self: Array, dim: Dims = None, keepdim: bool = False, dtype: np.dtype | None = None) -> Array:
    result = dtype or self.dtype
    if not is_floating(result):
        raise ValueError("integers have no mean: give a dtype")
    return to(jnp.mean(to(self, compute_type(result)), axes_of(self, dim), keepdims=keepdim), result)


@lowers("var.correction")
def variance(self: Array, dim: Dims = None, correction: Number | None = None, keepdim: bool = False) -> Array:
    if not is_floating(self.dtype):
        raise ValueError("integers have no variance")
    axes = axes_of(self, dim)
    wide = to(self, compute_type(self.dtype))
    centred = wide - jnp.mean(wide, axes, keepdims=True)
    count = int(np.prod([self.shape[axis] for axis in axes], dtype=np.int64))
    divisor = max(0.0, count - (1 if correction is None else correction))
    squares = jnp.sum(centred * centred, axes, keepdims=keepdim)
    return to(squares / to(divisor, wide.dtype), self.dtype)


@lowers("amax.default")
def amax(self: Array, dim: Sequence[int] = (), keepdim: bool = False) -> Array:
    """Equal elements share the gradient."""
    return jnp.max(self, axes_of(self, dim), keepdims=keepdim)


@lowers("argmax.default")
def argmax(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The first among equal elements."""
    if dim is None:
        found = to(jnp.argmax(self.reshape(-1)), INT64)
        return found.reshape((1,) * self.ndim) if keepdim else found
    axis = axis_of(self, dim)
    if not self.ndim:
        return jnp.zeros((), INT64)
    return to(jnp.argmax(self, axis, keepdims=keepdim), INT64)


@lowers("amin.default")
def amin(self: Array, dim: Sequence[int] = (), keepdim: bool = False) -> Array:
    return jnp.min(self, axes_of(self, dim), keepdims=keepdim)


@lowers("max.default")
def greatest(self: Array) -> Array:
    return jnp.max(self)


@lowers("min.default")
def least(self: Array) -> Array:
    return jnp.min(self)


@lowers("max.dim")
def greatest_along(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The gradient goes to the first among equal elements."""
    return _found(self, argmax(self, dim, keepdim=True), dim, keepdim)


@lowers("min.dim")
def least_along(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    axis = axis_of(self, dim)
    place = to(jnp.argmin(self, axis, keepdims=True), INT64) if self.ndim else jnp.zeros((), INT64)
    return _found(self, place, dim, keepdim)


def _found(self: Array, place: Array, dim: int, keepdim: bool) -> tuple[Array, Array]:
    """The element at a position along a dimension, and the position."""
    if not self.ndim:
        return self, place
    axis = axis_of(self, dim)
    values = jnp.take_along_axis(self, place, axis)
    return (values, place) if keepdim else (jnp.squeeze(values, axis), jnp.squeeze(place, axis))


@lowers("prod.default")
def product(self: Array, dtype: np.dtype | None = None) -> Array:
    return _product(self, None, False, dtype)


@lowers("prod.dim_int")
def product_along(self: Array, dim: int, keepdim: bool = False, dtype: np.dtype | None = None) -> Array:
    return _product(self, [dim], keepdim, dtype)


def _product(self: Array, dim: Dims, keepdim: bool, dtype: np.dtype | None) -> Array:
    result = dtype or (self.dtype if is_floating(self.dtype) else INT64)
    wide = to(self, compute_type(result))
    return to(jnp.prod(wide, axes_of(self, dim), keepdims=keepdim, dtype=wide.dtype), result)


@lowers("std.correction")
def deviation(
    self: Array, dim: Dims = None, correction: Number | None = None, keepdim: bool = False
) -> Array:
    """Has no gradient where it is 0."""
    spread = variance(to(self, compute_type(self.dtype)), dim, correction, keepdim)
    return to(_root(spread), self.dtype)


def _root(array: Array, degree: float = 2) -> Array:
    """The root of a non-negative number, without a gradient at 0."""
    positive = jnp.where(array == 0, 1, array)
    return jnp.where(array == 0, 0, jnp.sqrt(positive) if degree == 2 else positive ** (1 / degree))


@lowers("linalg_vector_norm.default")
def vector_norm(
    self: Array, ord: Number = 2, dim: Dims = None, keepdim: bool = False, dtype: np.dtype | None = None
) -> Array:
    """Has no gradient where an element, or the norm, is 0."""
    result = dtype or self.dtype
    if not is_floating(self.dtype) or not is_floating(result):
        raise ValueError("integers have no norm")
    axes, wide = axes_of(self, dim), absolute(to(self, compute_type(result)))
    if ord in (np.inf, -np.inf):
        made = (jnp.max if ord > 0 else jnp.min)(wide, axes, keepdims=keepdim)
    elif ord == 0:
        made = jnp.sum(to(wide != 0, wide.dtype), axes, keepdims=keepdim)
    elif ord < 0:
        raise ValueError(f"a norm of order {ord}")
    else:
        powers = wide * wide if ord == 2 else wide if ord == 1 else _root(wide, 1 / ord)
        sums = jnp.sum(powers, axes, keepdims=keepdim)
        made = sums if ord == 1 else _root(sums, ord)
    return to(made, result)


@lowers("cumsum.default")
def cumsum(self: Array, dim: int, dtype: np.dtype | None = None) -> Array:
    result = dtype or (self.dtype if is_floating(self.dtype) else INT64)
    axis = axis_of(self, dim)
    wide = to(self, compute_type(result))
    return to(jnp.cumsum(wide, axis, dtype=wide.dtype) if self.ndim else wide, result)


@lowers("diff.default")
def diff(
    self: Array, n: int = 1, dim: int = -1, prepend: Array | None = None, append: Array | None = None
) -> Array:
    """Differences of neighbours, n times; for booleans, whether they differ."""
    if not self.ndim or not 0 <= n <= MOST_DIFFERENCES:
        raise ValueError(f"{n} differences along {self.ndim} dimensions")
    axis = axis_of(self, dim)
    parts = [part for part in (prepend, self, append) if part is not None]
    result = result_type(*parts)
    joined = jnp.concatenate([to(part, result) for part in parts], axis) if n else self
    for _ in range(min(n, joined.shape[axis])):
        size = joined.shape[axis]
        after = lax.slice_in_dim(joined, 1, size, axis=axis)
        before = lax.slice_in_dim(joined, 0, size - 1, axis=axis)
        joined = after ^ before if result == BOOL else after - before
    return joined


@lowers("topk.default")
def topk(
    self: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    """The k largest or smallest elements in order, and their positions; the first among equals."""
    axis = axis_of(self, dim)
    if not self.ndim:
        if k > 1:
            raise ValueError(f"the best {k} of one")
        return self, jnp.zeros((), INT64)
    if not 0 <= k <= self.shape[axis]:
        raise ValueError(f"the best {k} of {self.shape[axis]}")
    order = jnp.argsort(self, axis, stable=True, descending=largest)
    places = lax.slice_in_dim(order, 0, k, axis=axis)
    return jnp.take_along_axis(self, places, axis), to(places, INT64)


def _along(self: Array, dim: int, dtype: np.dtype | None) -> tuple[Array, int, np.dtype]:
    """The input of softmax: at least one dimension, in a wide enough type."""
    result = dtype or self.dtype
    if not is_floating(result):
        raise ValueError("integers have no softmax: give a dtype")
    axis = axis_of(self, dim)
    wide = to(self, compute_type(result))
    return (wide if self.ndim else wide.reshape(1)), axis, result


@lowers("softmax.int")
def softmax(self: Array, dim: int, dtype: np.dtype | None = None) -> Array:
    wide, axis, result = _along(self, dim, dtype)
    return to(jax.nn.softmax(wide, axis), result).reshape(self.shape)


@lowers("log_softmax.int")
def log_softmax(self: Array, dim: int, dtype: np.dtype | None = None) -> Array:
    wide, axis, result = _along(self, dim, dtype)
    return to(jax.nn.log_softmax(wide, axis), result).reshape(self.shape)


@lowers("logsumexp.default")
def logsumexp(self: Array, dim: Sequence[int], keepdim: bool = False) -> Array:
    result = floating_type(self.dtype)
    wide = to(self, compute_type(result))
    return to(jax.nn.logsumexp(wide, axes_of(self, dim), keepdims=keepdim), result)

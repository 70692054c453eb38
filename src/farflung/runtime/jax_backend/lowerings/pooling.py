"""Pooling over windows of two and three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from farflung.runtime.jax_backend.lowering import lowers, require_room
from farflung.runtime.jax_backend.promotion import compute_type, is_floating, to

Array = jax.Array
Sizes = Sequence[int] | int

MOST_DILATED = 1024
"""Limit on the elements of a dilated window: each is an op of its own."""


def _each(sizes: Sizes, count: int) -> tuple[int, ...]:
    given = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if len(given) not in (1, count):
        raise ValueError(f"sizes {list(given)} of a window with {count} dimensions")
    return given * count if len(given) == 1 else given


def _require_pictures(input: Array, count: int) -> None:
    if input.ndim not in (count + 1, count + 2):
        raise ValueError(f"pooling takes pictures of {count} dimensions, with channels")


class _Windows:
    """The positions of windows in a pooling over `count` dimensions, by dimension.

    `padding` holds the elements before and after each dimension. With `ceil_mode`, it is enough for the last
    window, which may reach beyond the padding but must begin before its second half.
    """

    def __init__(
        self,
        input: Array,
        count: int,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
    ) -> None:
        _require_pictures(input, count)
        self.kernel = _each(kernel, count)
        self.stride = _each(stride, count) if isinstance(stride, int) or stride else self.kernel
        self.margin = _each(padding, count)
        self.dilation = _each(dilation, count)
        self.size = input.shape[-count:]
        for axis in range(count):
            self._check(axis)
        self.count = tuple(self._count(axis, ceil_mode) for axis in range(count))
        self.padding = [(self.margin[axis], self._after(axis)) for axis in range(count)]

    def _check(self, axis: int) -> None:
        if min(self.kernel[axis], self.stride[axis], self.dilation[axis]) < 1:
            raise ValueError("a window's size, stride and dilation must be at least 1")
        if not 0 <= self.margin[axis] <= self.kernel[axis] // 2:
            raise ValueError("the padding must be at most half of the window")

    def _reach(self, axis: int) -> int:
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def _count(self, axis: int, ceil_mode: bool) -> int:
        size, margin, stride = self.size[axis], self.margin[axis], self.stride[axis]
        room = size + 2 * margin - self._reach(axis)
        count = (-(-room // stride) if ceil_mode else room // stride) + 1
        if ceil_mode and (count - 1) * stride >= size + margin:
            count -= 1
        if count < 1:
            raise ValueError("the window is larger than the picture")
        return count

    def _after(self, axis: int) -> int:
        """The padding after the dimension; negative if the last window ends before the input does."""
        end = (self.count[axis] - 1) * self.stride[axis] + self._reach(axis)
        return end - self.size[axis] - self.margin[axis]

    def extents(self, include_padding: bool, dtype: np.dtype) -> Array:
        """The number of elements in each window's mean; never includes what `ceil_mode` adds."""
        found = jnp.ones((), dtype)
        for axis, (size, margin) in enumerate(zip(self.size, self.margin, strict=True)):
            starts = lax.iota(jnp.int64, self.count[axis]) * self.stride[axis] - margin
            ends = jnp.minimum(starts + self.kernel[axis], size + margin)
            if not include_padding:
                starts, ends = jnp.maximum(starts, 0), jnp.minimum(ends, size)
            found = found[..., None] * to(ends - starts, dtype)
        return found

    def padded(self, input: Array, fill: np.ndarray) -> Array:
        sides = [low + size + high for (low, high), size in zip(self.padding, self.size, strict=True)]
        lead = input.ndim - len(sides)
        require_room(math.prod((*input.shape[:lead], *sides)), input)
        return lax.pad(input, fill, [(0, 0, 0)] * lead + [(low, high, 0) for low, high in self.padding])


def _maximum(
    count: int,
    self: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Array:
    """The gradient goes to the first of those that are equal, row by row."""
    windows = _Windows(self, count, kernel_size, stride, padding, dilation, ceil_mode)
    least = np.array(-np.inf if is_floating(self.dtype) else jnp.iinfo(self.dtype).min, self.dtype)
    around = windows.padded(self, least)
    if set(windows.dilation) != {1}:
        return _dilated_maximum(around, windows)
    lead = (1,) * (self.ndim - count)
    shape, steps = lead + windows.kernel, lead + windows.stride
    return lax.reduce_window(around, least, lax.max, shape, steps, "VALID")


def _average(
    count: int,
    self: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    windows = _Windows(self, count, kernel_size, stride, padding, 1, ceil_mode)
    dtype = compute_type(self.dtype)
    nothing = np.zeros((), dtype)  # JAX must see the number to know that this is a sum
    around = windows.padded(to(self, dtype), nothing)
    lead = (1,) * (self.ndim - count)
    shape, steps = lead + windows.kernel, lead + windows.stride
    sums = lax.reduce_window(around, nothing, lax.add, shape, steps, "VALID")
    if divisor_override == 0:
        raise ValueError("the divisor must not be 0")
    if divisor_override is not None:
        return to(sums / divisor_override, self.dtype)
    return to(sums / windows.extents(count_include_pad, dtype), self.dtype)


def _adaptive_average(count: int, self: Array, output_size: Sizes) -> Array:
    """Windows from floor(i * size / n) to ceil((i + 1) * size / n) of n; a product for each side."""
    _require_pictures(self, count)
    wide = to(self, compute_type(self.dtype))
    for axis, windows in zip(range(-count, 0), _each(output_size, count), strict=True):
        size = self.shape[axis]
        if not 0 < windows <= 2**20 or not size:
            raise ValueError(f"{windows} windows over {size} elements")
        if windows == 1:
            wide = jnp.mean(wide, axis, keepdims=True)
        elif windows != size:
            require_room(size * windows, wide)
            shares = _shares(size, windows, wide.dtype)
            wide = jnp.moveaxis(jnp.moveaxis(wide, axis, -1) @ shares, -1, axis)
    return to(wide, self.dtype)


def _dilated_maximum(around: Array, windows: _Windows) -> Array:
    """JAX has no gradient of a dilated maximum, so the windows' elements are stacked here."""
    elements = math.prod(windows.kernel)
    if elements > MOST_DILATED:
        raise ValueError(f"a dilated window of {elements} elements: at most {MOST_DILATED}")
    lead = around.shape[: -len(windows.kernel)]
    require_room(elements * math.prod((*lead, *windows.count)), around)
    parts = []
    for place in np.ndindex(*windows.kernel):
        each = zip(place, windows.dilation, windows.count, windows.stride, strict=True)
        starts = [(at * apart, count, step) for at, apart, count, step in each]
        parts.append(around[..., *(slice(at, at + (n - 1) * step + 1, step) for at, n, step in starts)])
    stacked = jnp.stack(parts)
    chosen = lax.broadcasted_iota(jnp.int32, stacked.shape, 0) == jnp.argmax(stacked, 0)
    return jnp.sum(jnp.where(chosen, stacked, 0), 0, dtype=stacked.dtype)


def _shares(size: int, count: int, dtype: np.dtype) -> Array:
    """The contribution of each of `size` elements to each of `count` means, [size, count]."""
    window = lax.broadcasted_iota(jnp.int64, (size, count), 1)
    element = lax.broadcasted_iota(jnp.int64, (size, count), 0)
    starts, ends = window * size // count, -((window + 1) * -size // count)
    return ((element >= starts) & (element < ends)) / to(ends - starts, dtype)


for _count in (2, 3):
    lowers(f"max_pool{_count}d.default")(partial(_maximum, _count))
    lowers(f"avg_pool{_count}d.default")(partial(_average, _count))
    lowers(f"adaptive_avg_pool{_count}d.default")(partial(_adaptive_average, _count))

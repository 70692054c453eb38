"""Pooling over windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from farflung.runtime.jax_backend.lowering import lowers
from farflung.runtime.jax_backend.promotion import compute_type, is_floating, to
from farflung.runtime.jax_backend.room import require_room

Array = jax.Array
Sizes = Sequence[int] | int

MOST_DILATED = 1024
"""How many elements a dilated window may have: each is an op of its own."""


def _pair(sizes: Sizes) -> tuple[int, int]:
    given = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if len(given) not in (1, 2):
        raise ValueError(f"sizes {list(given)} of a window with two dimensions")
    return given[0], given[-1]


class _Windows:
    """Where the windows of a pooling lie, one dimension after the other.

    `padding` holds for each dimension what is laid before and after it: with `ceil_mode` enough for the last
    window, which may reach beyond the padding but must begin before its second half.
    """

    def __init__(
        self, input: Array, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool
    ) -> None:
        if input.ndim not in (3, 4):
            raise ValueError("pooling takes pictures of two dimensions, with channels")
        self.kernel = _pair(kernel)
        self.stride = _pair(stride) if isinstance(stride, int) or stride else self.kernel
        self.margin = _pair(padding)
        self.dilation = _pair(dilation)
        self.size = input.shape[-2:]
        for axis in range(2):
            self._check(axis)
        self.count = tuple(self._count(axis, ceil_mode) for axis in range(2))
        self.padding = [(self.margin[axis], self._after(axis)) for axis in range(2)]

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
        """Negative where the last window ends before the picture does."""
        end = (self.count[axis] - 1) * self.stride[axis] + self._reach(axis)
        return end - self.size[axis] - self.margin[axis]

    def extents(self, axis: int, include_padding: bool, dtype: np.dtype) -> Array:
        """How many elements each window's mean is over, along one dimension; never what `ceil_mode` adds."""
        size, margin = self.size[axis], self.margin[axis]
        starts = lax.iota(jnp.int64, self.count[axis]) * self.stride[axis] - margin
        ends = jnp.minimum(starts + self.kernel[axis], size + margin)
        if not include_padding:
            starts, ends = jnp.maximum(starts, 0), jnp.minimum(ends, size)
        return to(ends - starts, dtype)

    def padded(self, input: Array, fill: np.ndarray) -> Array:
        rows, columns = (low + size + high for (low, high), size in zip(self.padding, self.size, strict=True))
        require_room(math.prod(input.shape[:-2]) * rows * columns, input)
        around = [(0, 0, 0)] * (input.ndim - 2) + [(low, high, 0) for low, high in self.padding]
        return lax.pad(input, fill, around)


@lowers("max_pool2d.default")
def max_pool2d(
    self: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Array:
    """The gradient goes to the first of those that are equal, row by row."""
    windows = _Windows(self, kernel_size, stride, padding, dilation, ceil_mode)
    least = np.array(-np.inf if is_floating(self.dtype) else jnp.iinfo(self.dtype).min, self.dtype)
    around = windows.padded(self, least)
    if windows.dilation != (1, 1):
        return _dilated_maximum(around, windows)
    lead = (1,) * (self.ndim - 2)
    return lax.reduce_window(around, least, lax.max, lead + windows.kernel, lead + windows.stride, "VALID")


def _dilated_maximum(around: Array, windows: _Windows) -> Array:
    """JAX has no gradient of a dilated maximum: here the windows' elements lie beside each other."""
    height, width = windows.kernel
    if height * width > MOST_DILATED:
        raise ValueError(f"a dilated window of {height * width} elements: at most {MOST_DILATED}")
    require_room(height * width * math.prod(around.shape[:-2]) * math.prod(windows.count), around)
    parts = []
    for place in np.ndindex(height, width):
        start = [place[axis] * windows.dilation[axis] for axis in range(2)]
        end = [start[axis] + (windows.count[axis] - 1) * windows.stride[axis] + 1 for axis in range(2)]
        parts.append(
            around[..., start[0] : end[0] : windows.stride[0], start[1] : end[1] : windows.stride[1]]
        )
    stacked = jnp.stack(parts)
    chosen = lax.broadcasted_iota(jnp.int32, stacked.shape, 0) == jnp.argmax(stacked, 0)
    return jnp.sum(jnp.where(chosen, stacked, 0), 0, dtype=stacked.dtype)


@lowers("avg_pool2d.default")
def avg_pool2d(
    self: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    windows = _Windows(self, kernel_size, stride, padding, 1, ceil_mode)
    dtype = compute_type(self.dtype)
    nothing = np.zeros((), dtype)  # JAX must see the number to know that this is a sum
    around = windows.padded(to(self, dtype), nothing)
    lead = (1,) * (self.ndim - 2)
    sums = lax.reduce_window(around, nothing, lax.add, lead + windows.kernel, lead + windows.stride, "VALID")
    if divisor_override == 0:
        raise ValueError("the divisor must not be 0")
    if divisor_override is not None:
        return to(sums / divisor_override, self.dtype)
    rows, columns = (windows.extents(axis, count_include_pad, dtype) for axis in range(2))
    return to(sums / (rows[:, None] * columns), self.dtype)


@lowers("adaptive_avg_pool2d.default")
def adaptive_avg_pool2d(self: Array, output_size: Sizes) -> Array:
    """Windows from floor(i * size / windows) to ceil((i + 1) * size / windows); a product for each side."""
    if self.ndim not in (3, 4):
        raise ValueError("pooling takes pictures of two dimensions, with channels")
    wide = to(self, compute_type(self.dtype))
    for axis, count in zip((-2, -1), _pair(output_size), strict=True):
        size = self.shape[axis]
        if not 0 < count <= 2**20 or not size:
            raise ValueError(f"{count} windows over {size} elements")
        if count == 1:
            wide = jnp.mean(wide, axis, keepdims=True)
        elif count != size:
            require_room(size * count, wide)
            wide = jnp.moveaxis(jnp.moveaxis(wide, axis, -1) @ _shares(size, count, wide.dtype), -1, axis)
    return to(wide, self.dtype)


def _shares(size: int, count: int, dtype: np.dtype) -> Array:
    """How much each of `size` elements adds to each of `count` means, [size, count]."""
    window = lax.broadcasted_iota(jnp.int64, (size, count), 1)
    element = lax.broadcasted_iota(jnp.int64, (size, count), 0)
    starts, ends = window * size // count, -((window + 1) * -size // count)
    return ((element >= starts) & (element < ends)) / to(ends - starts, dtype)

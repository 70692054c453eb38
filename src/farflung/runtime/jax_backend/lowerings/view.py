"""Views: the same elements in another shape or order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from farflung.runtime.jax_backend.lowering import axis_of, lowers, position
from farflung.runtime.jax_backend.promotion import compute_type, to

Array = jax.Array


@lowers("reshape.default")
def reshape(self: Array, shape: Sequence[int]) -> Array:
    if any(size < -1 for size in shape):
        raise ValueError(f"shape {list(shape)}")
    return self.reshape(tuple(shape))


@lowers("transpose.int")
def transpose(self: Array, dim0: int, dim1: int) -> Array:
    one, other = axis_of(self, dim0), axis_of(self, dim1)
    return jnp.swapaxes(self, one, other) if self.ndim else self


@lowers("permute.default")
def permute(self: Array, dims: Sequence[int]) -> Array:
    if len(dims) != self.ndim:
        raise ValueError(f"{len(dims)} dimensions of {self.ndim}")
    return jnp.transpose(self, [axis_of(self, dim) for dim in dims])


@lowers("t.default")
def t(self: Array) -> Array:
    if self.ndim > 2:
        raise ValueError(f"t is for matrices, found {self.ndim} dimensions")
    return self.T


@lowers("unsqueeze.default")
def unsqueeze(self: Array, dim: int) -> Array:
    return jnp.expand_dims(self, position(dim, self.ndim + 1))


@lowers("squeeze.dim")
def squeeze(self: Array, dim: int) -> Array:
    return squeeze_dims(self, [dim])


@lowers("squeeze.default")
def squeeze_all(self: Array) -> Array:
    return jnp.squeeze(self)


@lowers("squeeze.dims")
def squeeze_dims(self: Array, dim: Sequence[int]) -> Array:
    """Remove those dimensions whose size is 1."""
    axes = [axis_of(self, one) for one in dim]
    if len(set(axes)) != len(axes):
        raise ValueError("a dimension is named twice")
    return jnp.squeeze(self, tuple(axis for axis in axes if self.ndim and self.shape[axis] == 1))


@lowers("expand.default")
def expand(self: Array, size: Sequence[int], implicit: bool = False) -> Array:
    """-1 keeps a size; new dimensions come first."""
    new = len(size) - self.ndim
    if new < 0 or any(one < 0 and (one != -1 or at < new) for at, one in enumerate(size)):
        raise ValueError(f"{list(self.shape)} to {list(size)}")
    shape = [self.shape[at - new] if one == -1 else one for at, one in enumerate(size)]
    return _broadcast(self, shape)


@lowers("expand_as.default")
def expand_as(self: Array, other: Array) -> Array:
    return _broadcast(self, other.shape)


def _broadcast(self: Array, shape: Sequence[int]) -> Array:
    """Broadcast; the gradient is a sum, computed in float32 for half types."""
    wide = to(self, compute_type(self.dtype))
    return to(jnp.broadcast_to(wide, tuple(shape)), self.dtype)


@lowers("slice.Tensor")
def slice_(
    self: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    if not self.ndim or step < 1:
        raise ValueError(f"a slice of {self.ndim} dimensions, step {step}")
    axis = axis_of(self, dim)
    first, last, _ = slice(start, end, step).indices(self.shape[axis])
    return lax.slice_in_dim(self, first, max(first, last), step, axis)


@lowers("select.int")
def select(self: Array, dim: int, index: int) -> Array:
    if not self.ndim:
        raise ValueError("a scalar has nothing to select from")
    axis = axis_of(self, dim)
    return lax.index_in_dim(self, position(index, self.shape[axis]), axis, keepdims=False)


def _pieces(self: Array, axis: int, sizes: Sequence[int]) -> list[Array]:
    ends = np.cumsum(sizes, dtype=np.int64)
    return [
        lax.slice_in_dim(self, int(end) - size, int(end), 1, axis)
        for size, end in zip(sizes, ends, strict=True)
    ]


def _in_steps(extent: int, step: int) -> list[int]:
    """Sizes of pieces of `step` elements, with the rest in the last one; always at least one piece."""
    full, rest = divmod(extent, step) if step else (0, 0)
    return [step] * full + [rest] * bool(rest) or [extent]


@lowers("split.Tensor")
def split(self: Array, split_size: int, dim: int = 0) -> list[Array]:
    axis = _splittable(self, dim)
    if split_size < 0 or (not split_size and self.shape[axis]):
        raise ValueError(f"pieces of {split_size}")
    return _pieces(self, axis, _in_steps(self.shape[axis], split_size))


@lowers("split_with_sizes.default")
def split_with_sizes(self: Array, split_sizes: Sequence[int], dim: int = 0) -> list[Array]:
    axis = _splittable(self, dim)
    if any(size < 0 for size in split_sizes) or sum(split_sizes) != self.shape[axis]:
        raise ValueError(f"pieces that do not add up to {self.shape[axis]}")
    return _pieces(self, axis, split_sizes)


@lowers("chunk.default")
def chunk(self: Array, chunks: int, dim: int = 0) -> list[Array]:
    """At most this many pieces, all of the same size but the last."""
    axis = _splittable(self, dim)
    if chunks < 1:
        raise ValueError(f"{chunks} pieces")
    extent = self.shape[axis]
    if not extent:
        return _pieces(self, axis, [0] * chunks)
    return _pieces(self, axis, _in_steps(extent, -(-extent // chunks)))


@lowers("unbind.int")
def unbind(self: Array, dim: int = 0) -> list[Array]:
    axis = _splittable(self, dim)
    return [lax.index_in_dim(self, at, axis, keepdims=False) for at in range(self.shape[axis])]


def _splittable(self: Array, dim: int) -> int:
    if not self.ndim:
        raise ValueError("a scalar has no pieces")
    return axis_of(self, dim)


@lowers("flatten.using_ints")
def flatten(self: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    first, last = axis_of(self, start_dim), axis_of(self, end_dim)
    if first > last:
        raise ValueError(f"from dimension {first} to {last}")
    if not self.ndim:
        return self.reshape(1)
    shape = self.shape
    return self.reshape(*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])


@lowers("detach.default")
def detach(self: Array) -> Array:
    return lax.stop_gradient(self)

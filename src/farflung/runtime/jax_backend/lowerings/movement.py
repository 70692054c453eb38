"""Select, join and rearrange elements.

An index that is out of range gives NaN (or the type's smallest number), where PyTorch raises: compiled code
cannot raise, and a loss of NaN ends the job.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from farflung.runtime.jax_backend.lowering import axis_of, lowers, position, require_room
from farflung.runtime.jax_backend.promotion import BOOL, Number, is_floating, result_type, to

Array = jax.Array


@lowers("embedding.default")
def embedding(
    weight: Array, indices: Array, padding_idx: int = -1, scale_grad_by_freq: bool = False
) -> Array:
    """An index equal to `padding_idx` contributes no gradient."""
    if weight.ndim != 2 or indices.dtype not in (np.int32, np.int64):
        raise ValueError(f"an embedding of {weight.ndim} dimensions by {indices.dtype}")
    rows = _take_slices(weight, indices, 0)
    if scale_grad_by_freq:
        counts = jnp.zeros(weight.shape[0], weight.dtype).at[indices.reshape(-1)].add(1)
        rows = _with_gradient_times(rows, 1 / counts[indices][..., None])
    if padding_idx >= 0:
        rows = jnp.where((indices == padding_idx)[..., None], lax.stop_gradient(rows), rows)
    return rows


@jax.custom_vjp
def _with_gradient_times(array: Array, factor: Array) -> Array:
    return array


_with_gradient_times.defvjp(
    lambda array, factor: (array, factor),
    lambda factor, gradient: (gradient * factor, jnp.zeros_like(factor)),
)


def _take_slices(array: Array, indices: Array, axis: int) -> Array:
    """Slices along an axis; a negative index is out of range."""
    size = array.shape[axis]
    known = jnp.where(indices < 0, size, indices)
    return jnp.take(array, known, axis, mode="fill")


@lowers("index_select.default")
def index_select(self: Array, dim: int, index: Array) -> Array:
    if index.ndim > 1 or index.dtype not in (np.int32, np.int64):
        raise ValueError(f"an index of {index.ndim} dimensions, {index.dtype}")
    axis = axis_of(self, dim)
    if not self.ndim:
        return _take_slices(self.reshape(1), index.reshape(-1), 0).reshape(())
    return _take_slices(self, index.reshape(-1), axis)


@lowers("index.Tensor")
def index(self: Array, indices: Sequence[Array | None]) -> Array:
    """Integer indices, broadcast; negative ones count from the end."""
    if len(indices) > self.ndim:
        raise ValueError(f"{len(indices)} indices of {self.ndim} dimensions")
    if any(one is not None and one.dtype not in (np.int32, np.int64) for one in indices):
        raise ValueError("indices must be integers: the size of a mask's selection is not known")
    if all(one is None for one in indices):
        raise ValueError("at least one index must be given")
    picked = tuple(slice(None) if one is None else one for one in indices)
    return self.at[picked].get(mode="fill")


@lowers("gather.default")
def gather(self: Array, dim: int, index: Array) -> Array:
    if index.dtype != np.int64 or max(1, index.ndim) != max(1, self.ndim):
        raise ValueError(f"an index of {index.ndim} dimensions, {index.dtype}")
    axis = axis_of(self, dim)
    if not self.ndim or not index.ndim:
        return _take_slices(self.reshape(-1), index.reshape(-1), 0).reshape(index.shape)
    sizes = zip(self.shape, index.shape, strict=True)
    if any(size < wanted for at, (size, wanted) in enumerate(sizes) if at != axis):
        raise ValueError(f"an index of shape {list(index.shape)} into {list(self.shape)}")
    limits = [self.shape[at] if at == axis else size for at, size in enumerate(index.shape)]
    known = jnp.where(index < 0, self.shape[axis], index)
    corner = lax.slice(self, [0] * self.ndim, limits)
    return jnp.take_along_axis(corner, known, axis, mode="fill")


def _corner(self: Array, dim: int, index: Array, src: Array) -> tuple[tuple[Array, ...], Array]:
    """The places that an index names, and the part of `src` that goes there."""
    if index.dtype != np.int64 or not self.ndim == index.ndim == src.ndim:
        raise ValueError(f"an index of {index.ndim} dimensions, {index.dtype}, into {self.ndim} dimensions")
    axis = axis_of(self, dim)
    for at, wanted in enumerate(index.shape):
        if wanted > src.shape[at] or (at != axis and wanted > self.shape[at]):
            raise ValueError(f"an index of shape {list(index.shape)} into {list(self.shape)}")
    places = list(jnp.indices(index.shape, sparse=True)) if index.ndim else []
    if index.ndim:
        places[axis] = jnp.where(index < 0, self.shape[axis], index)
    return tuple(places), lax.slice(src, [0] * src.ndim, index.shape)


@lowers("scatter.src")
def scatter(self: Array, dim: int, index: Array, src: Array) -> Array:
    """Of several values for one place, any may stay."""
    if src.dtype != self.dtype:
        raise ValueError(f"{src.dtype} into {self.dtype}")
    if not self.ndim or not index.size:
        return src.reshape(self.shape) if not self.ndim else self
    places, part = _corner(self, dim, index, src)
    return self.at[places].set(part, mode="drop")


@lowers("scatter.value")
def scatter_number(self: Array, dim: int, index: Array, value: Number) -> Array:
    return scatter(self, dim, index, jnp.full(index.shape, to(value, self.dtype)))


@lowers("scatter_add.default")
def scatter_add(self: Array, dim: int, index: Array, src: Array) -> Array:
    """Several values for one place are added, in an order of XLA's choice."""
    if src.dtype != self.dtype:
        raise ValueError(f"{src.dtype} into {self.dtype}")
    if not self.ndim or not index.size:
        return self + src.reshape(self.shape) if not self.ndim else self
    places, part = _corner(self, dim, index, src)
    at = self.at[places]
    return at.max(part, mode="drop") if self.dtype == BOOL else at.add(part, mode="drop")


@lowers("scatter_reduce.two")
def scatter_reduce(
    self: Array, dim: int, index: Array, src: Array, reduce: str, include_self: bool = True
) -> Array:
    """Values for one place are added, averaged, or the largest or smallest of them stays."""
    if src.dtype != self.dtype:
        raise ValueError(f"{src.dtype} into {self.dtype}")
    if self.dtype == BOOL:
        if reduce == "mean":
            raise ValueError("a mean of bool")
        whole, kind = np.dtype(np.int32), "amax" if reduce == "sum" else reduce
        return scatter_reduce(to(self, whole), dim, index, to(src, whole), kind, include_self) != 0
    if not self.ndim:
        one = scatter_reduce(self[None], 0, index.reshape(1), src.reshape(1), reduce, include_self)
        return one.reshape(())
    if not index.size:
        return self
    places, part = _corner(self, dim, index, src)
    counts = jnp.zeros(self.shape, self.dtype).at[places].add(1, mode="drop")
    if reduce in ("amax", "amin"):
        return _extreme(self, places, part, reduce, include_self, counts)
    begin = self if include_self else jnp.where(counts > 0, 0, self)
    total = begin.at[places].add(part, mode="drop")
    if reduce == "sum":
        return total
    shares = jnp.maximum(counts + include_self, 1)
    return total / shares if is_floating(self.dtype) else total // shares


def _extreme(
    self: Array, places: tuple[Array, ...], part: Array, reduce: str, include_self: bool, counts: Array
) -> Array:
    """The gradient is shared by all that are equal to the result, as PyTorch does it."""
    info = None if is_floating(self.dtype) else jnp.iinfo(self.dtype)
    least, most = (-jnp.inf, jnp.inf) if info is None else (info.min, info.max)
    begin = self if include_self else jnp.where(counts > 0, least if reduce == "amax" else most, self)
    at = begin.at[places]
    made = lax.stop_gradient(at.max(part, mode="drop") if reduce == "amax" else at.min(part, mode="drop"))
    if not is_floating(self.dtype):
        return made
    theirs = part == made.at[places].get(mode="fill")
    shares = (self == made).astype(self.dtype).at[places].add(theirs.astype(self.dtype), mode="drop")
    shares = 1 / jnp.maximum(shares, 1)
    is_own = (self == made) & ((counts == 0) | include_self)
    own = jnp.where(is_own, _only_gradient(self) * shares, 0)
    others = jnp.where(theirs, _only_gradient(part) * shares.at[places].get(mode="fill"), 0)
    return made + own.at[places].add(others, mode="drop")


def _only_gradient(array: Array) -> Array:
    """Zeros that have the gradient of `array`."""
    finite = jnp.where(jnp.isfinite(array), array, 0)
    return finite - lax.stop_gradient(finite)


def _masked(self: Array, mask: Array, value: Array) -> Array:
    """One value wherever a mask over the first dimensions is true."""
    if mask.shape != self.shape[: mask.ndim] or value.dtype != self.dtype:
        raise ValueError(f"a mask of shape {list(mask.shape)} for {list(self.shape)}, {value.dtype}")
    return jnp.where(mask.reshape(*mask.shape, *[1] * (self.ndim - mask.ndim)), value, self)


@lowers("index_put.default")
def index_put(self: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    """Integer indices, broadcast, of which negative ones count from the end; or one mask, and one value."""
    first = indices[0] if indices else None
    if len(indices) == 1 and first is not None and first.dtype == BOOL and not values.ndim and not accumulate:
        return _masked(self, first, values)
    wanted = jax.eval_shape(lambda: index(self, indices)).shape
    if values.dtype != self.dtype or values.ndim > len(wanted):
        raise ValueError(
            f"values of shape {list(values.shape)}, {values.dtype}, into {list(wanted)}, {self.dtype}"
        )
    at = self.at[tuple(slice(None) if one is None else one for one in indices)]
    part = jnp.broadcast_to(values, wanted)
    return at.add(part, mode="drop") if accumulate else at.set(part, mode="drop")


@lowers("cat.default")
def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    """Empty arrays of one dimension are ignored, as in PyTorch."""
    dtype = result_type(*tensors)
    parts = [tensor for tensor in tensors if tensor.shape != (0,)] or [tensors[0]]
    if any(not part.ndim for part in parts):
        raise ValueError("scalars cannot be joined")
    return jnp.concatenate([to(part, dtype) for part in parts], axis_of(parts[0], dim))


@lowers("stack.default")
def stack(tensors: Sequence[Array], dim: int = 0) -> Array:
    dtype = result_type(*tensors)
    return jnp.stack([to(tensor, dtype) for tensor in tensors], dim)


@lowers("repeat.default")
def repeat(self: Array, repeats: Sequence[int]) -> Array:
    if len(repeats) < self.ndim or any(count < 0 for count in repeats):
        raise ValueError(f"{len(repeats)} repeats of {self.ndim} dimensions")
    return jnp.tile(self, tuple(repeats))


@lowers("flip.default")
def flip(self: Array, dims: Sequence[int]) -> Array:
    axes = [axis_of(self, dim) for dim in dims]
    if len(set(axes)) != len(axes):
        raise ValueError("a dimension is named twice")
    return jnp.flip(self, tuple(axes)) if self.ndim else self


@lowers("roll.default")
def roll(self: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    """Without dimensions, the array is treated as flat."""
    if not dims and len(shifts) == 1:
        return jnp.roll(self, shifts[0])
    if len(shifts) != len(dims):
        raise ValueError(f"{len(shifts)} shifts over {len(dims)} dimensions")
    return jnp.roll(self, tuple(shifts), tuple(axis_of(self, dim) for dim in dims))


@lowers("_to_copy.default")
def to_copy(self: Array, dtype: np.dtype | None = None) -> Array:
    if dtype is None or dtype == self.dtype:
        return self
    return self != 0 if dtype == BOOL else to(self, dtype)


@lowers("repeat_interleave.self_int")
def repeat_interleave(
    self: Array, repeats: int, dim: int | None = None, output_size: int | None = None
) -> Array:
    """Repeat each element `repeats` times; without a dimension, the array is treated as flat."""
    rows = self.reshape(-1) if dim is None or not self.ndim else self
    axis = axis_of(rows, 0 if dim is None else dim)
    if repeats < 0 or output_size not in (None, rows.shape[axis] * repeats):
        raise ValueError(f"{repeats} repeats of {rows.shape[axis]} to {output_size}")
    return jnp.repeat(rows, repeats, axis)


@lowers("select_scatter.default")
def select_scatter(self: Array, src: Array, dim: int, index: int) -> Array:
    if not self.ndim:
        raise ValueError("a scalar has no part")
    axis = axis_of(self, dim)
    return _replaced(self, src, axis, position(index, self.shape[axis]))


@lowers("slice_scatter.default")
def slice_scatter(
    self: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    if not self.ndim or step < 1:
        raise ValueError(f"a part of {self.ndim} dimensions by steps of {step}")
    return _replaced(self, src, axis_of(self, dim), slice(start, end, step))


def _replaced(self: Array, source: Array, axis: int, part: int | slice) -> Array:
    at = self.at[(slice(None),) * axis + (part,)]
    wanted = jax.eval_shape(at.get).shape
    if source.shape != wanted:
        raise ValueError(f"{list(source.shape)} into a part of shape {list(wanted)}")
    return at.set(to(source, self.dtype))


@lowers("pixel_shuffle.default")
def pixel_shuffle(self: Array, upscale_factor: int) -> Array:
    """Rearrange channels into pixels."""
    factor, (*lead, channels, height, width) = upscale_factor, _picture(self, upscale_factor)
    if channels % factor**2:
        raise ValueError(f"{channels} channels in blocks of {factor}")
    count, parts = len(lead), (*lead, channels // factor**2, factor, factor, height, width)
    order = (*range(count + 1), count + 3, count + 1, count + 4, count + 2)
    moved = jnp.transpose(self.reshape(parts), order)
    return moved.reshape(*lead, channels // factor**2, height * factor, width * factor)


@lowers("pixel_unshuffle.default")
def pixel_unshuffle(self: Array, downscale_factor: int) -> Array:
    """Rearrange pixels into channels."""
    factor, (*lead, channels, height, width) = downscale_factor, _picture(self, downscale_factor)
    if height % factor or width % factor:
        raise ValueError(f"a picture of {height} x {width} in blocks of {factor}")
    count, parts = len(lead), (*lead, channels, height // factor, factor, width // factor, factor)
    order = (*range(count + 1), count + 2, count + 4, count + 1, count + 3)
    moved = jnp.transpose(self.reshape(parts), order)
    return moved.reshape(*lead, channels * factor**2, height // factor, width // factor)


def _picture(self: Array, factor: int) -> tuple[int, ...]:
    if self.ndim < 3 or factor < 1:
        raise ValueError(f"a picture of {self.ndim} dimensions in blocks of {factor}")
    return self.shape


@lowers("constant_pad_nd.default")
def constant_pad_nd(self: Array, pad: Sequence[int], value: Number = 0) -> Array:
    """Negative padding crops."""
    return lax.pad(self, to(value, self.dtype), [(low, high, 0) for low, high in _margins(self, pad)])


@lowers("pad.default")
def pad(self: Array, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Array:
    if mode == "constant":
        return constant_pad_nd(self, pad, 0 if value is None else value)
    if value is not None:
        raise ValueError(f"padding in mode {mode} takes no value")
    if not 2 <= len(pad) <= 6 or self.ndim not in (len(pad) // 2 + 1, len(pad) // 2 + 2):
        raise ValueError(f"{len(pad)} paddings of {self.ndim} dimensions in mode {mode}")
    margins = _margins(self, pad)
    for (low, high), size in zip(margins, self.shape, strict=True):
        most = {"reflect": size - 1, "circular": size}.get(mode, 2**31)
        if max(low, high) > most or not size:
            raise ValueError(f"{mode} padding of {max(low, high)} around {size}")
    growth = [(max(low, 0), max(high, 0)) for low, high in margins]
    cuts = [(min(low, 0), min(high, 0), 0) for low, high in margins]
    if any(low or high for low, high, _ in cuts):
        grown = [low + size + high for (low, high), size in zip(growth, self.shape, strict=True)]
        require_room(math.prod(grown), self)
    nothing = jnp.zeros((), self.dtype)
    if mode == "circular":  # cropped elements must not be wrapped around
        return jnp.pad(lax.pad(self, nothing, cuts), growth, _PAD_MODES[mode])
    return lax.pad(jnp.pad(self, growth, _PAD_MODES[mode]), nothing, cuts)


_PAD_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _margins(self: Array, pad: Sequence[int]) -> list[tuple[int, int]]:
    """The padding before and after each dimension; pairs are given for the last dimension first."""
    if len(pad) % 2 or len(pad) > 2 * self.ndim:
        raise ValueError(f"{len(pad)} paddings of {self.ndim} dimensions")
    pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    margins = [(0, 0)] * (self.ndim - len(pairs)) + pairs
    if any(low + size + high < 0 for (low, high), size in zip(margins, self.shape, strict=True)):
        raise ValueError("the padding crops more elements than there are")
    return margins

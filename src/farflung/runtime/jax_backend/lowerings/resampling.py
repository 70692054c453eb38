"""Interpolation between elements, one dimension after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from farflung.runtime.jax_backend.lowering import lowers, require_room
from farflung.runtime.jax_backend.promotion import compute_type, is_floating, to

Array = jax.Array
Shares = Callable[[Array, Array, int], Array]
"""The contributions of elements (their numbers, [size, made]) to positions among `size` elements."""

_CUBIC = -0.75
"""The slope parameter of PyTorch's cubic curve."""


def _sizes(
    input: Array, count: int, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None
) -> list[tuple[int, float | None]]:
    """For each dimension, the number of results, and the factor if one was given."""
    if input.ndim != count + 2 or not is_floating(input.dtype):
        raise ValueError(f"interpolation over {count} dimensions of {input.ndim}")
    if (output_size is None) == (scale_factors is None):
        raise ValueError("either sizes or factors must be given")
    factors = [None] * count if scale_factors is None else [float(factor) for factor in scale_factors]
    made = [
        int(input.shape[at + 2] * factor) if factor is not None else output_size[at]  # type: ignore[index]
        for at, factor in enumerate(factors)
    ]
    for size, wanted in zip(input.shape[2:], made, strict=True):
        if size < 1 or wanted < 1:
            raise ValueError(f"{size} elements to {wanted}")
    return list(zip(made, factors, strict=True))


def _mixed(count: int, name: str, shares: Shares) -> None:
    def lowered(
        input: Array,
        output_size: Sequence[int] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None,
    ) -> Array:
        wide = to(input, compute_type(input.dtype))
        for at, (made, factor) in enumerate(_sizes(input, count, output_size, scale_factors)):
            axis, size = at + 2, input.shape[at + 2]
            require_room(size * made, wide)
            place = lax.broadcasted_iota(wide.dtype, (size, made), 1)
            element = lax.broadcasted_iota(wide.dtype, (size, made), 0)
            matrix = shares(element, _source(place, size, made, align_corners, factor), size)
            wide = jnp.moveaxis(jnp.moveaxis(wide, axis, -1) @ matrix, -1, axis)
        return to(wide, input.dtype)

    lowers(name)(lowered)


def _source(place: Array, size: int, made: int, align_corners: bool, factor: float | None) -> Array:
    """The position of a result among the elements."""
    if align_corners:
        return place * ((size - 1) / (made - 1) if made > 1 else 0.0)
    return (place + 0.5) * (1 / factor if factor else size / made) - 0.5


def _linear(element: Array, at: Array, size: int) -> Array:
    return jnp.maximum(0, 1 - jnp.abs(element - jnp.clip(at, 0, size - 1)))


def _cubic(element: Array, at: Array, size: int) -> Array:
    """Weights of four neighbours; neighbours beyond the border repeat the last element."""
    below, shares = jnp.floor(at), jnp.zeros_like(at)
    for step in (-1, 0, 1, 2):
        distance = jnp.abs(at - below - step)
        share = _near(distance) if step in (0, 1) else _far(distance)
        shares += jnp.where(element == jnp.clip(below + step, 0, size - 1), share, 0)
    return shares


def _near(x: Array) -> Array:
    return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1


def _far(x: Array) -> Array:
    return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC


_mixed(1, "upsample_linear1d.vec", _linear)
_mixed(2, "upsample_bilinear2d.vec", _linear)
_mixed(3, "upsample_trilinear3d.vec", _linear)
_mixed(2, "upsample_bicubic2d.vec", _cubic)


def _nearest(count: int) -> None:
    def lowered(
        input: Array, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None
    ) -> Array:
        """Places are computed in float32, as PyTorch's kernels do."""
        made = input
        for at, (wanted, factor) in enumerate(_sizes(input, count, output_size, scale_factors)):
            size = input.shape[at + 2]
            require_room(made.size // size * wanted, made)
            step = np.float32(1 / factor if factor else size / wanted)
            places = np.floor(np.arange(wanted, dtype=np.float32) * step).astype(np.int64)
            made = jnp.take(made, np.minimum(places, size - 1), at + 2)
        return made

    lowers(f"upsample_nearest{count}d.vec")(lowered)


for _count in (1, 2, 3):
    _nearest(_count)

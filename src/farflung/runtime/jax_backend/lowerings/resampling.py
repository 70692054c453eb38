"""Linear interpolation between elements, one dimension after the other."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from farflung.runtime.jax_backend.lowering import lowers
from farflung.runtime.jax_backend.promotion import compute_type, is_floating, to
from farflung.runtime.jax_backend.room import require_room

Array = jax.Array


def _linear(count: int, name: str) -> None:
    def lowered(
        input: Array,
        output_size: Sequence[int] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None,
    ) -> Array:
        if input.ndim != count + 2 or not is_floating(input.dtype):
            raise ValueError(f"interpolation over {count} dimensions of {input.ndim}")
        if (output_size is None) == (scale_factors is None):
            raise ValueError("either sizes or factors must be given")
        wide = to(input, compute_type(input.dtype))
        for at in range(count):
            axis, factor = at + 2, None if scale_factors is None else float(scale_factors[at])
            size = input.shape[axis]
            made = int(size * factor) if factor is not None else output_size[at]  # type: ignore[index]
            if size < 1 or made < 1:
                raise ValueError(f"{size} elements to {made}")
            require_room(size * made, wide)
            shares = _shares(size, made, align_corners, factor, wide.dtype)
            wide = jnp.moveaxis(jnp.moveaxis(wide, axis, -1) @ shares, -1, axis)
        return to(wide, input.dtype)

    lowers(name)(lowered)


_linear(2, "upsample_bilinear2d.vec")
_linear(3, "upsample_trilinear3d.vec")


def _shares(size: int, made: int, align_corners: bool, factor: float | None, dtype: np.dtype) -> Array:
    """How much each of `size` elements adds to each of the `made` ones, [size, made]."""
    if align_corners:
        step, shift = ((size - 1) / (made - 1) if made > 1 else 0.0), 0.0
    else:
        step, shift = (1 / factor if factor else size / made), 0.5
    place = lax.broadcasted_iota(dtype, (size, made), 1)
    element = lax.broadcasted_iota(dtype, (size, made), 0)
    at = jnp.clip((place + shift) * step - shift, 0, size - 1)
    return jnp.maximum(0, 1 - jnp.abs(element - at))

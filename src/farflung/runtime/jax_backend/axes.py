"""Dimensions by PyTorch's rules: negative ones count from the end, and a scalar has a dimension 0."""

from __future__ import annotations

from collections.abc import Sequence

import jax


def axis_of(array: jax.Array, dim: int) -> int:
    """The dimension `dim` of `array`, from 0.

    Raises
    ------
    ValueError
        There is no such dimension.
    """
    return position(dim, max(1, array.ndim))


def position(dim: int, count: int) -> int:
    """`dim` among `count` dimensions, from 0."""
    if not -count <= dim < count:
        raise ValueError(f"dimension {dim} of {count}")
    return dim % count


def axes_of(array: jax.Array, dims: Sequence[int] | None) -> tuple[int, ...]:
    """The dimensions to reduce, from 0: all where none are given, none of a scalar."""
    if not dims:
        return tuple(range(array.ndim))
    axes = tuple(axis_of(array, dim) for dim in dims)
    if len(set(axes)) != len(axes):
        raise ValueError("a dimension is named twice")
    return axes if array.ndim else ()

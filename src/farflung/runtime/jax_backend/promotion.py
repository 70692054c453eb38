"""PyTorch's element types: the type of an op's result, and the type in which it is computed.

Operands fall into three classes: arrays with dimensions, arrays without, and Python numbers. A class decides
the result's type only if no earlier class has a type of the same category (bool, integer, floating) or a
higher one; a Python float counts as float32 and an integer as int64. Half types are computed in float32 and
rounded once, as in PyTorch's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

Number = bool | int | float
Operand = jax.Array | Number

FLOAT32 = np.dtype(np.float32)
INT64 = np.dtype(np.int64)
BOOL = np.dtype(np.bool_)
_DEFAULT_FLOAT = FLOAT32


def is_floating(dtype: np.dtype) -> bool:
    """Whether the type is a floating point one; bfloat16 is."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


def number_type(number: Number) -> np.dtype:
    """The element type of a Python number if nothing else decides it."""
    if isinstance(number, bool):
        return BOOL
    return INT64 if isinstance(number, int) else _DEFAULT_FLOAT


def result_type(*operands: Operand) -> np.dtype:
    """The element type of an elementwise op's result, as `torch.result_type`."""
    arrays = [operand for operand in operands if isinstance(operand, jax.Array)]
    classes = (
        _joined(array.dtype for array in arrays if array.ndim),
        _joined(array.dtype for array in arrays if not array.ndim),
        _joined(number_type(operand) for operand in operands if not isinstance(operand, jax.Array)),
    )
    found: np.dtype | None = None
    for dtype in classes:
        if dtype is not None and (found is None or _category(dtype) > _category(found)):
            found = dtype if found is None else _promoted(found, dtype)
    assert found is not None
    return found


def compute_type(dtype: np.dtype) -> np.dtype:
    """The type in which values of `dtype` are computed."""
    return FLOAT32 if is_floating(dtype) and dtype.itemsize < 4 else dtype


def accumulation_type(dtype: np.dtype) -> np.dtype:
    """The type in which sums over values of `dtype` are computed; for integers, also that of the result."""
    return compute_type(dtype) if is_floating(dtype) else INT64


def floating_type(dtype: np.dtype) -> np.dtype:
    """The result type of a function that is defined for floating-point numbers only."""
    return dtype if is_floating(dtype) else _DEFAULT_FLOAT


def to(operand: Operand, dtype: np.dtype) -> jax.Array:
    """The operand as an array of `dtype`."""
    return jnp.asarray(operand, dtype)


def elementwise(function: Callable[..., jax.Array], *operands: Operand) -> jax.Array:
    """`function` of the operands in their common type."""
    dtype = result_type(*operands)
    return to(function(*(to(operand, compute_type(dtype)) for operand in operands)), dtype)


def floating(function: Callable[..., jax.Array], *operands: Operand) -> jax.Array:
    """`function` of the operands in their common type, or in float32 if that is not floating-point."""
    dtype = floating_type(result_type(*operands))
    return to(function(*(to(operand, compute_type(dtype)) for operand in operands)), dtype)


def _joined(dtypes: Iterable[np.dtype]) -> np.dtype | None:
    found: np.dtype | None = None
    for dtype in dtypes:
        found = dtype if found is None else _promoted(found, dtype)
    return found


def _promoted(one: np.dtype, other: np.dtype) -> np.dtype:
    return np.dtype(jnp.promote_types(one, other))


def _category(dtype: np.dtype) -> int:
    return 2 if is_floating(dtype) else 0 if dtype == BOOL else 1

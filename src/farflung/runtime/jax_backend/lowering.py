"""The table of lowerings: for each op of the opset, a function that makes JAX compute what PyTorch computes.

A lowering takes the op's arguments by the names of its schema, tensors as `jax.Array` and element types as
NumPy's; random ones also take `random_key`. It runs while JAX traces, so it may look at shapes and types but
not at numbers. `lowerings` holds them, one file per group of the opset.

Dimensions follow PyTorch's rules: negative ones count from the end, and a scalar has a dimension 0. A
lowering's intermediate arrays must stay in proportion to its operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp

from farflung.errors import GraphError
from farflung.opdag import opset
from farflung.opdag.graph import Argument, BatchSize, DType, Node, Ref
from farflung.runtime.jax_backend.arrays import DTYPES

Lowering = Callable[..., Any]

REFUSED: dict[str, str] = {}
"""Ops of the opset that this backend does not run, each with the reason."""

_GROUPS = (
    "elementwise", "comparison", "reduction", "loss", "normalisation", "pooling", "resampling", "product",
    "quantized", "convolution", "attention", "view", "movement", "creation", "random",
)  # fmt: skip
_TABLE: dict[str, Lowering] = {}


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a function in the table under the names of the ops that it lowers, as the table has them."""

    def enter(function: Lowering) -> Lowering:
        for name in names:
            assert opset.full_name(name) not in _TABLE, name
            _TABLE[opset.full_name(name)] = function
        return function

    return enter


@cache
def table() -> Mapping[str, Lowering]:
    """Every lowering by the op's name."""
    for group in _GROUPS:
        import_module(f"farflung.runtime.jax_backend.lowerings.{group}")
    return _TABLE


def lacks() -> tuple[str, ...]:
    """Ops of the opset that this backend does not run."""
    return tuple(sorted(opset.table().keys() - table().keys()))


def run(node: Node, values: Mapping[int, jax.Array], batch: int, random_key: jax.Array) -> list[jax.Array]:
    """The node's results for `values`, one array for each of its outputs.

    Raises
    ------
    GraphError
        This backend does not run the op.
    """
    function = table().get(node.op)
    if function is None:
        reason = REFUSED.get(node.op, "it has no lowering")
        raise GraphError(f"the JAX backend does not run {node.op}: {reason}")
    resolved = {name: _resolved(argument, values, batch) for name, argument in node.arguments.items()}
    if opset.lookup(node.op).random:
        resolved["random_key"] = random_key
    results = function(**resolved)
    return list(results) if isinstance(results, list | tuple) else [results]


def _resolved(argument: Argument | Sequence[Any], values: Mapping[int, jax.Array], batch: int) -> Any:
    if isinstance(argument, list):
        return [_resolved(element, values, batch) for element in argument]
    if isinstance(argument, Ref):
        return jnp.asarray(values[argument.id])
    if isinstance(argument, BatchSize):
        return argument.at(batch)
    if isinstance(argument, DType):
        return DTYPES[argument.name]
    return argument


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
    """The dimensions to reduce, from 0: all if none are given, none for a scalar."""
    if not dims:
        return tuple(range(array.ndim))
    axes = tuple(axis_of(array, dim) for dim in dims)
    if len(set(axes)) != len(axes):
        raise ValueError("a dimension is named twice")
    return axes if array.ndim else ()


MOST_TIMES = 64
ALWAYS_ELEMENTS = 2**20


def require_room(elements: int, *beside: jax.Array) -> None:
    """Refuse an intermediate array of that many elements if the arrays in `beside` are small.

    Raises
    ------
    ValueError
        It has more than `ALWAYS_ELEMENTS`, and more than `MOST_TIMES` as many as the others together.
    """
    most = max(ALWAYS_ELEMENTS, MOST_TIMES * sum(math.prod(array.shape) for array in beside))
    if elements > most:
        raise ValueError(f"it would need {elements} temporary elements, the limit is {most}")

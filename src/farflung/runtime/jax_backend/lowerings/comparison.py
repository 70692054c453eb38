"""Comparisons, logic and bitwise ops."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from farflung.runtime.jax_backend.lowering import lowers
from farflung.runtime.jax_backend.promotion import BOOL, Operand, is_floating, result_type, to

Array = jax.Array
Binary = Callable[[Array, Array], Array]


def _comparison(function: Binary) -> Callable[[Array, Operand], Array]:
    """Compare both sides in their common type; half types are not widened."""

    def lowered(self: Array, other: Operand) -> Array:
        dtype = result_type(self, other)
        return function(to(self, dtype), to(other, dtype))

    return lowered


lowers("eq.Tensor", "eq.Scalar")(_comparison(jnp.equal))
lowers("ne.Tensor", "ne.Scalar")(_comparison(jnp.not_equal))
lowers("lt.Tensor", "lt.Scalar")(_comparison(jnp.less))
lowers("le.Tensor", "le.Scalar")(_comparison(jnp.less_equal))
lowers("gt.Tensor", "gt.Scalar")(_comparison(jnp.greater))
lowers("ge.Tensor", "ge.Scalar")(_comparison(jnp.greater_equal))


@lowers("logical_and.default")
def logical_and(self: Array, other: Array) -> Array:
    return jnp.logical_and(to(self, BOOL), to(other, BOOL))


@lowers("logical_or.default")
def logical_or(self: Array, other: Array) -> Array:
    return jnp.logical_or(to(self, BOOL), to(other, BOOL))


@lowers("logical_not.default")
def logical_not(self: Array) -> Array:
    return jnp.logical_not(to(self, BOOL))


def _bitwise(function: Binary) -> Callable[[Array, Operand], Array]:
    def lowered(self: Array, other: Operand) -> Array:
        dtype = result_type(self, other)
        if is_floating(dtype):
            raise ValueError("floating point numbers have no bitwise ops")
        return function(to(self, dtype), to(other, dtype))

    return lowered


lowers("bitwise_and.Tensor")(_bitwise(jnp.bitwise_and))
lowers("bitwise_or.Tensor")(_bitwise(jnp.bitwise_or))
lowers("bitwise_xor.Tensor")(_bitwise(jnp.bitwise_xor))


@lowers("bitwise_not.default")
def bitwise_not(self: Array) -> Array:
    return jnp.bitwise_not(self)

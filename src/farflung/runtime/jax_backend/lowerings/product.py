"""Matrix products. Products of half types are summed in float32 and rounded once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from farflung.runtime.jax_backend.lowering import lowers
from farflung.runtime.jax_backend.promotion import BOOL, Number, compute_type, is_floating, to

Array = jax.Array


def product(left: Array, right: Array) -> Array:
    """`left @ right` with broadcast batch dimensions, in the type that sums are computed in.

    Raises
    ------
    ValueError
        The factors have different element types, or sizes that do not fit.
    """
    if left.dtype != right.dtype:
        raise ValueError(f"a product of {left.dtype} and {right.dtype}")
    if left.dtype == BOOL:
        raise ValueError("booleans have no product")
    if not left.ndim or not right.ndim:
        raise ValueError("a product needs at least one dimension on each side")
    return jnp.matmul(left, right, preferred_element_type=compute_type(left.dtype))


def _shaped(name: str, array: Array, ndim: int) -> Array:
    if array.ndim != ndim:
        raise ValueError(f"{name} has {array.ndim} dimensions, {ndim} are needed")
    return array


@lowers("matmul.default")
def matmul(self: Array, other: Array) -> Array:
    return to(product(self, other), self.dtype)


@lowers("bmm.default")
def bmm(self: Array, mat2: Array) -> Array:
    left, right = _shaped("self", self, 3), _shaped("mat2", mat2, 3)
    if left.shape[0] != right.shape[0]:
        raise ValueError(f"{left.shape[0]} matrices times {right.shape[0]}")
    return matmul(left, right)


@lowers("mm.default")
def mm(self: Array, mat2: Array) -> Array:
    return matmul(_shaped("self", self, 2), _shaped("mat2", mat2, 2))


@lowers("addmm.default")
def addmm(self: Array, mat1: Array, mat2: Array, beta: Number = 1, alpha: Number = 1) -> Array:
    return _added(self, product(_shaped("mat1", mat1, 2), _shaped("mat2", mat2, 2)), beta, alpha, mat1)


@lowers("baddbmm.default")
def baddbmm(self: Array, batch1: Array, batch2: Array, beta: Number = 1, alpha: Number = 1) -> Array:
    left, right = _shaped("batch1", batch1, 3), _shaped("batch2", batch2, 3)
    if left.shape[0] != right.shape[0]:
        raise ValueError(f"{left.shape[0]} matrices times {right.shape[0]}")
    return _added(self, product(left, right), beta, alpha, batch1)


def _added(self: Array, made: Array, beta: Number, alpha: Number, factor: Array) -> Array:
    """beta * self + alpha * made; `self` is ignored if beta is 0."""
    if self.dtype != factor.dtype:
        raise ValueError(f"a product of {factor.dtype} added to {self.dtype}")
    if not is_floating(self.dtype) and not (float(beta).is_integer() and float(alpha).is_integer()):
        raise ValueError("integers are only multiplied by integers")
    made = made if alpha == 1 else made * to(alpha, made.dtype)
    term = jnp.broadcast_to(to(self, made.dtype), made.shape)
    if beta != 1:
        term = jnp.zeros_like(term) if beta == 0 else term * to(beta, term.dtype)
    return to(made + term, self.dtype)


@lowers("linear.default")
def linear(input: Array, weight: Array, bias: Array | None = None) -> Array:
    """input times the transposed weight; the bias is added before the result is rounded."""
    if weight.ndim not in (1, 2) or not input.ndim or input.dtype != weight.dtype:
        raise ValueError(f"a linear layer of {weight.ndim} dimensions, {input.dtype} and {weight.dtype}")
    made = lax.dot_general(
        input,
        weight,
        (((input.ndim - 1,), (weight.ndim - 1,)), ((), ())),
        preferred_element_type=compute_type(input.dtype),
    )
    if bias is not None:
        if bias.dtype != input.dtype:
            raise ValueError(f"a bias of {bias.dtype} added to {input.dtype}")
        made = made + to(bias, made.dtype)
    return to(made, input.dtype)

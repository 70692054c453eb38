"""Arithmetic and activations, element by element."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from farflung.runtime.jax_backend.lowering import lowers
from farflung.runtime.jax_backend.promotion import (
    BOOL,
    Number,
    Operand,
    compute_type,
    elementwise,
    floating,
    is_floating,
    result_type,
    to,
)

Array = jax.Array


@lowers("add.Tensor", "add.Scalar")
def add(self: Array, other: Operand, alpha: Number = 1) -> Array:
    return elementwise(lambda a, b: a + _scaled(b, alpha), self, other)


@lowers("sub.Tensor", "sub.Scalar")
def sub(self: Array, other: Operand, alpha: Number = 1) -> Array:
    _refuse_booleans("sub", self, other)
    return elementwise(lambda a, b: a - _scaled(b, alpha), self, other)


@lowers("rsub.Scalar")
def rsub(self: Array, other: Number, alpha: Number = 1) -> Array:
    _refuse_booleans("rsub", self)
    return elementwise(lambda a, b: b - _scaled(a, alpha), self, other)


@lowers("mul.Tensor", "mul.Scalar")
def mul(self: Array, other: Operand) -> Array:
    return elementwise(jnp.multiply, self, other)


@lowers("div.Tensor", "div.Scalar")
def div(self: Array, other: Operand) -> Array:
    return floating(jnp.true_divide, self, other)


@lowers("pow.Tensor_Scalar")
def pow_by_number(self: Array, exponent: Number) -> Array:
    dtype = result_type(self, exponent)
    if not is_floating(dtype) and exponent < 0:
        raise ValueError("integers have no negative powers")
    base = to(self, compute_type(dtype))
    if exponent == 0.5:
        return to(jnp.sqrt(base), dtype)
    if float(exponent).is_integer() and (abs(exponent) <= 64 or not is_floating(dtype)):
        return to(lax.integer_pow(base, int(exponent)), dtype)
    return to(jnp.power(base, to(exponent, base.dtype)), dtype)


@lowers("pow.Tensor_Tensor", "pow.Scalar")
def power(self: Operand, exponent: Array) -> Array:
    return elementwise(jnp.power, self, exponent)


def _scaled(array: Array, alpha: Number) -> Array:
    return array if alpha == 1 else array * to(alpha, array.dtype)


def _refuse_booleans(name: str, *operands: Operand) -> None:
    if any(isinstance(operand, jax.Array) and operand.dtype == BOOL for operand in operands):
        raise ValueError(f"{name} takes no boolean tensors")


@lowers("neg.default")
def neg(self: Array) -> Array:
    _refuse_booleans("neg", self)
    return jnp.negative(self)


@lowers("abs.default")
def absolute(self: Array) -> Array:
    """Has no gradient at 0."""
    return self * lax.stop_gradient(jnp.sign(self)) if is_floating(self.dtype) else jnp.abs(self)


@lowers("square.default")
def square(self: Array) -> Array:
    return pow_by_number(self, 2)


@lowers("maximum.default")
def maximum(self: Array, other: Array) -> Array:
    return elementwise(jnp.maximum, self, other)


@lowers("minimum.default")
def minimum(self: Array, other: Array) -> Array:
    return elementwise(jnp.minimum, self, other)


def _function(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A lowering of a function of one argument."""

    def lowered(self: Array) -> Array:
        return floating(function, self)

    return lowered


lowers("sqrt.default")(_function(jnp.sqrt))
lowers("rsqrt.default")(_function(lax.rsqrt))
lowers("exp.default")(_function(jnp.exp))
lowers("log.default")(_function(jnp.log))
lowers("log1p.default")(_function(jnp.log1p))
lowers("log2.default")(_function(jnp.log2))
lowers("expm1.default")(_function(jnp.expm1))
lowers("atan.default")(_function(jnp.arctan))
lowers("sin.default")(_function(jnp.sin))
lowers("cos.default")(_function(jnp.cos))
lowers("tanh.default")(_function(jnp.tanh))
lowers("sigmoid.default")(_function(jax.nn.sigmoid))
lowers("reciprocal.default")(_function(jnp.reciprocal))
lowers("erf.default")(_function(lax.erf))
lowers("silu.default")(_function(lambda x: x * jax.nn.sigmoid(x)))
lowers("mish.default")(_function(lambda x: x * jnp.tanh(jax.nn.softplus(x))))
lowers("log_sigmoid.default")(_function(jax.nn.log_sigmoid))


def _step(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A lowering of a function that leaves integers unchanged and has no gradient."""

    def lowered(self: Array) -> Array:
        _refuse_booleans("rounding", self)
        return elementwise(function, self) if is_floating(self.dtype) else self

    return lowered


lowers("floor.default")(_step(jnp.floor))
lowers("ceil.default")(_step(jnp.ceil))
lowers("round.default")(_step(jnp.round))


@lowers("sign.default")
def sign(self: Array) -> Array:
    return self if self.dtype == BOOL else jnp.sign(self)


@lowers("remainder.Scalar", "remainder.Tensor")
def remainder(self: Array, other: Operand) -> Array:
    """The result has the sign of the divisor."""
    _refuse_booleans("remainder", self, other)
    return elementwise(jnp.remainder, self, other)


@lowers("relu.default")
def relu(self: Array) -> Array:
    return jax.nn.relu(self)


@lowers("gelu.default")
def gelu(self: Array, approximate: str = "none") -> Array:
    return elementwise(lambda x: jax.nn.gelu(x, approximate=approximate == "tanh"), self)


# Below, `where` decides on which side of a threshold a gradient passes. The other branch gets a harmless
# argument, because an overflow there would make the gradient NaN although it does not count.


@lowers("leaky_relu.default")
def leaky_relu(self: Array, negative_slope: Number = 0.01) -> Array:
    return elementwise(lambda x: jnp.where(x > 0, x, x * to(negative_slope, x.dtype)), self)


@lowers("elu.default")
def elu(self: Array, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Array:
    def of(x: Array) -> Array:
        negative = jnp.expm1(jnp.where(x > 0, 0, x) * to(input_scale, x.dtype)) * to(alpha * scale, x.dtype)
        return jnp.where(x > 0, x * to(scale, x.dtype), negative)

    return elementwise(of, self)


@lowers("softplus.default")
def softplus(self: Array, beta: Number = 1, threshold: Number = 20) -> Array:
    def of(x: Array) -> Array:
        scaled = x * to(beta, x.dtype)
        straight = scaled > threshold
        curved = jnp.log1p(jnp.exp(jnp.where(straight, 0, scaled))) / to(beta, x.dtype)
        return jnp.where(straight, x, curved)

    return elementwise(of, self)


@lowers("hardtanh.default")
def hardtanh(self: Array, min_val: Number = -1, max_val: Number = 1) -> Array:
    """Has no gradient at the thresholds."""
    least, most = to(min_val, self.dtype), to(max_val, self.dtype)
    return jnp.where(self <= least, least, jnp.where(self >= most, most, self))


@lowers("hardswish.default")
def hardswish(self: Array) -> Array:
    return elementwise(lambda x: jnp.where(x <= -3, 0, jnp.where(x < 3, x * (x + 3) / 6, x)), self)


@lowers("hardsigmoid.default")
def hardsigmoid(self: Array) -> Array:
    return elementwise(lambda x: jnp.where(x <= -3, 0, jnp.where(x < 3, x / 6 + 0.5, 1)), self)


@lowers("prelu.default")
def prelu(self: Array, weight: Array) -> Array:
    """One slope, or one for each channel."""
    if weight.ndim > 1 or weight.dtype != self.dtype:
        raise ValueError(f"slopes of shape {list(weight.shape)}, {weight.dtype}")
    if weight.size != 1 and (self.ndim < 2 or weight.size != self.shape[1]):
        raise ValueError(f"{weight.size} slopes for an input of shape {list(self.shape)}")
    slopes = weight.reshape(() if weight.size == 1 else (-1, *[1] * (self.ndim - 2)))
    return elementwise(lambda x, slope: jnp.where(x > 0, x, x * slope), self, slopes)


@lowers("clamp.default")
def clamp(self: Array, min: Number | None = None, max: Number | None = None) -> Array:
    """Passes the whole gradient at the limits."""
    if min is None and max is None:
        raise ValueError("clamp needs a minimum or a maximum")
    limits: list[Number] = [limit for limit in (min, max) if limit is not None]
    result = to(self, result_type(self, *limits))
    if min is not None:
        result = jnp.where(result < to(min, result.dtype), to(min, result.dtype), result)
    if max is not None:
        result = jnp.where(result > to(max, result.dtype), to(max, result.dtype), result)
    return result


@lowers("clamp_min.default")
def clamp_min(self: Array, min: Number) -> Array:
    return clamp(self, min=min)


@lowers("clamp_max.default")
def clamp_max(self: Array, max: Number) -> Array:
    return clamp(self, max=max)


@lowers("where.self", "where.ScalarOther", "where.ScalarSelf")
def where(condition: Array, self: Operand, other: Operand) -> Array:
    dtype = result_type(self, other)
    return jnp.where(to(condition, BOOL), to(self, dtype), to(other, dtype))


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self: Array, mask: Array, value: Operand) -> Array:
    if isinstance(value, jax.Array) and value.ndim:
        raise ValueError("masked_fill fills in one value")
    if mask.dtype != BOOL:
        raise ValueError("masked_fill takes a boolean mask")
    return jnp.where(mask, to(value, self.dtype), self)


@lowers("tril.default")
def tril(self: Array, diagonal: int = 0) -> Array:
    return jnp.tril(self, diagonal)


@lowers("triu.default")
def triu(self: Array, diagonal: int = 0) -> Array:
    return jnp.triu(self, diagonal)

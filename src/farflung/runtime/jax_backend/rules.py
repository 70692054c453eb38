"""The update of one parameter by each optimizer: the numbers of `torch.optim`, in the same order of ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Lion, Muon, Recipe

Array = jax.Array
Slots = tuple[Array, ...]

NUMBERS = 3
"""Numbers of a step that a rule is given, of which it may leave some."""

# (parameter, scaled gradient, slots, the numbers of this step in the parameter's type) -> parameter and slots
Rule = Callable[[Array, Array, Slots, Array], tuple[Array, Slots]]


def numbers_of(recipe: Recipe, shape: Sequence[int], step: int, count: int) -> list[float]:
    """The inputs of a parameter's update rule in step `step` of the job and `count`, from 1, of its own."""
    declared, rate = recipe.declared, recipe.rate(step)
    decay = 1 - rate * recipe.weight_decay
    if isinstance(declared, AdamW):
        first, second = (1 - beta**count for beta in declared.betas)
        return [decay, -rate / first, math.sqrt(second)]
    if isinstance(declared, SGD):
        return [-rate, 1.0 if count == 1 else 1 - declared.dampening, 0.0]
    if isinstance(declared, Adafactor):
        return [decay, float(count) ** declared.beta2_decay, min(rate, 1 / count**0.5)]
    if isinstance(declared, Muon):
        return [decay, -rate * _rate_ratio(declared, shape), 0.0]
    return [decay, -rate, 0.0]


def update_rule(recipe: Recipe) -> Rule:
    """The rule of a recipe; its numbers are those of `numbers_of`."""
    declared = recipe.declared
    if isinstance(declared, AdamW):
        return partial(_adamw, declared)
    if isinstance(declared, SGD):
        return partial(_sgd, declared, recipe.weight_decay)
    if isinstance(declared, Lion):
        return partial(_lion, declared)
    if isinstance(declared, Adafactor):
        return partial(_adafactor, declared)
    return partial(_muon, declared)


def _adamw(
    declared: AdamW, parameter: Array, gradient: Array, slots: Slots, typed: Array
) -> tuple[Array, Slots]:
    first, second = declared.betas
    decay, size, correction = typed
    mean, square = slots
    mean = mean + (1 - first) * (gradient - mean)
    square = square * second + (1 - second) * gradient * gradient
    divisor = jnp.sqrt(square) / correction + declared.eps
    return parameter * decay + size * (mean / divisor), (mean, square)


def _sgd(
    declared: SGD, weight_decay: float, parameter: Array, gradient: Array, slots: Slots, typed: Array
) -> tuple[Array, Slots]:
    rate, share, _ = typed
    direction = gradient + weight_decay * parameter if weight_decay else gradient
    if slots:
        buffer = slots[0] * declared.momentum + share * direction
        slots = (buffer,)
        direction = direction + declared.momentum * buffer if declared.nesterov else buffer
    return parameter + rate * direction, slots


def _lion(
    declared: Lion, parameter: Array, gradient: Array, slots: Slots, typed: Array
) -> tuple[Array, Slots]:
    first, second = declared.betas
    decay, rate, _ = typed
    direction = jnp.sign(slots[0] * first + gradient * (1 - first))
    return parameter * decay + rate * direction, (slots[0] * second + gradient * (1 - second),)


def _adafactor(
    declared: Adafactor, parameter: Array, gradient: Array, slots: Slots, typed: Array
) -> tuple[Array, Slots]:
    if not parameter.size:
        return parameter, slots
    decay, share, relative = typed
    least, least_norm = declared.eps
    least = float(jnp.finfo(parameter.dtype).eps) if least is None else least
    rate = jnp.maximum(least_norm, _root_mean_square(parameter)) * relative
    estimate, slots = _estimate(gradient, slots, share, least)
    update = jax.lax.rsqrt(jnp.maximum(estimate, least * least)) * gradient
    divisor = jnp.maximum(1.0, _root_mean_square(update) / declared.d)
    return parameter * decay - (rate / divisor).astype(parameter.dtype) * update, slots


def _estimate(gradient: Array, slots: Slots, share: Array, least: float) -> tuple[Array, Slots]:
    """The mean of the squared gradients, of a matrix from those of its rows and columns."""
    if gradient.ndim < 2:
        variance = slots[0] + share * (gradient * gradient - slots[0])
        return variance, (variance,)
    rows, columns = slots
    rows = rows + share * (jnp.mean(gradient * gradient, -1, keepdims=True) - rows)
    columns = columns + share * (jnp.mean(gradient * gradient, -2, keepdims=True) - columns)
    whole = jnp.maximum(jnp.mean(rows, -2, keepdims=True), least)
    return rows * columns / whole, (rows, columns)


def _root_mean_square(array: Array) -> Array:
    wide = array.astype(jnp.promote_types(array.dtype, jnp.float32))
    return jnp.sqrt(jnp.mean(wide * wide))


def _muon(
    declared: Muon, parameter: Array, gradient: Array, slots: Slots, typed: Array
) -> tuple[Array, Slots]:
    decay, rate, _ = typed
    momentum = declared.momentum
    buffer = slots[0] + (1 - momentum) * (gradient - slots[0])
    direction = gradient + momentum * (buffer - gradient) if declared.nesterov else buffer
    update = orthogonal(declared, direction).astype(parameter.dtype)
    return parameter * decay + rate * update, (buffer,)


def orthogonal(declared: Muon, matrix: Array) -> Array:
    """The matrix with its singular values near 1, in bfloat16, by Newton and Schulz's iteration."""
    a, b, c = declared.ns_coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]
    made = (matrix.T if is_tall else matrix).astype(jnp.bfloat16)
    norm = jnp.sqrt(jnp.sum(jnp.square(made.astype(jnp.float32)))).astype(jnp.bfloat16)
    made = made / jnp.maximum(norm, declared.eps).astype(jnp.bfloat16)
    for _ in range(declared.ns_steps):
        gram = _product(made, made.T)
        polynomial = _plus(b, gram, c, gram, gram)
        made = _plus(a, made, 1.0, polynomial, made)
    return made.T if is_tall else made


def _product(left: Array, right: Array) -> Array:
    return jnp.matmul(left, right, preferred_element_type=jnp.float32).astype(jnp.bfloat16)


def _plus(beta: float, given: Array, alpha: float, left: Array, right: Array) -> Array:
    """`torch.addmm`, rounded once."""
    product = jnp.matmul(left, right, preferred_element_type=jnp.float32)
    return (beta * given.astype(jnp.float32) + alpha * product).astype(jnp.bfloat16)


def _rate_ratio(declared: Muon, shape: Sequence[int]) -> float:
    rows, columns = shape
    if declared.adjust_lr_fn == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns)) if columns else 1.0

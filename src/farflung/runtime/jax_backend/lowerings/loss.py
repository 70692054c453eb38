"""Losses. `reduction` is PyTorch's number: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from farflung.runtime.jax_backend.lowering import lowers
from farflung.runtime.jax_backend.lowerings.elementwise import absolute
from farflung.runtime.jax_backend.promotion import compute_type, elementwise, is_floating, result_type, to

Array = jax.Array
NONE, MEAN, SUM = 0, 1, 2


def _reduced(losses: Array, reduction: int) -> Array:
    """Sum in a wide enough type, and return the type of the losses."""
    if reduction not in (NONE, MEAN, SUM):
        raise ValueError(f"reduction {reduction}")
    if reduction == NONE:
        return losses
    wide = to(losses, compute_type(losses.dtype))
    return to(jnp.mean(wide) if reduction == MEAN else jnp.sum(wide), losses.dtype)


@lowers("mse_loss.default")
def mse_loss(self: Array, target: Array, reduction: int = MEAN) -> Array:
    return _reduced(elementwise(lambda a, b: (a - b) * (a - b), self, target), reduction)


@lowers("smooth_l1_loss.default")
def smooth_l1_loss(self: Array, target: Array, reduction: int = MEAN, beta: float = 1.0) -> Array:
    if beta < 0:
        raise ValueError(f"beta of {beta}")

    def of(a: Array, b: Array) -> Array:
        distance = absolute(a - b)
        if not beta:
            return distance
        return jnp.where(distance < beta, 0.5 / beta * distance * distance, distance - 0.5 * beta)

    return _reduced(elementwise(of, self, target), reduction)


@lowers("binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    self: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    if target.shape != self.shape:
        raise ValueError(f"target has shape {list(target.shape)}, input {list(self.shape)}")
    dtype = result_type(self, target)
    wide = compute_type(dtype)
    x, y = to(self, wide), to(target, wide)
    positive = 1 if pos_weight is None else 1 + (to(pos_weight, wide) - 1) * y
    losses = (1 - y) * x - positive * jax.nn.log_sigmoid(x)
    if weight is not None:
        losses = losses * to(weight, wide)
    return _reduced(to(losses, dtype), reduction)


@lowers("nll_loss_nd.default")
def nll_loss(
    self: Array,
    target: Array,
    weight: Array | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
) -> Array:
    return _by_class(to(self, compute_type(self.dtype)), self, target, weight, reduction, ignore_index, 0.0)


@lowers("cross_entropy_loss.default")
def cross_entropy_loss(
    self: Array,
    target: Array,
    weight: Array | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Array:
    axis = _class_axis(self)
    scores = jax.nn.log_softmax(to(self, compute_type(self.dtype)), axis)
    if self.shape == target.shape:
        return _by_probability(scores, self, target, weight, reduction, label_smoothing)
    return _by_class(scores, self, target, weight, reduction, ignore_index, label_smoothing)


def _class_axis(scores: Array) -> int:
    """Classes are the first dimension of a single sample, otherwise the second."""
    if not scores.ndim:
        raise ValueError("a score for each class is needed")
    return 0 if scores.ndim == 1 else 1


def _per_class(weight: Array | None, scores: Array, axis: int) -> Array:
    """One weight for each class, shaped to broadcast along the classes."""
    shape = [1] * scores.ndim
    shape[axis] = scores.shape[axis]
    if weight is None:
        return jnp.ones(shape, scores.dtype)
    if weight.shape != (scores.shape[axis],):
        raise ValueError(f"weight has shape {list(weight.shape)}, there are {scores.shape[axis]} classes")
    return to(weight, scores.dtype).reshape(shape)


def _by_class(
    scores: Array,
    self: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
) -> Array:
    """Targets are class numbers. An invalid one makes the loss NaN, where PyTorch raises."""
    axis = _class_axis(self)
    if is_floating(target.dtype) or target.shape != self.shape[:axis] + self.shape[axis + 1 :]:
        raise ValueError(f"target has shape {list(target.shape)}, input {list(self.shape)}")
    counted = target != ignore_index
    classes = lax.broadcasted_iota(target.dtype, scores.shape, axis)
    chosen = classes == jnp.expand_dims(target, axis)
    weights = _per_class(weight, scores, axis)
    known = (target >= 0) & (target < scores.shape[axis])
    weight_of = jnp.sum(jnp.where(chosen, weights, 0), axis)
    losses = -jnp.sum(jnp.where(chosen, scores * weights, 0), axis)
    losses = jnp.where(counted, jnp.where(known, losses, jnp.nan), 0)
    if smoothing:
        spread = jnp.where(counted, -jnp.sum(scores * weights, axis), 0)
        losses = (1 - smoothing) * losses + smoothing / scores.shape[axis] * spread
    if reduction == MEAN:
        mass = jnp.sum(jnp.where(counted, weight_of, 0))
        return to(jnp.sum(losses) / mass, self.dtype)
    return to(_reduced(losses, reduction), self.dtype)


def _by_probability(
    scores: Array, self: Array, target: Array, weight: Array | None, reduction: int, smoothing: float
) -> Array:
    """Targets are probabilities of the classes."""
    if not is_floating(target.dtype):
        raise ValueError("targets of the input's shape must be probabilities")
    axis = _class_axis(self)
    wanted = to(target, scores.dtype)
    if smoothing:
        wanted = wanted * (1 - smoothing) + smoothing / scores.shape[axis]
    losses = -jnp.sum(scores * wanted * _per_class(weight, scores, axis), axis)
    return to(_reduced(losses, reduction), self.dtype)

"""Layer, group, RMS and batch norms: statistics in float32 at least."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from farflung.runtime.jax_backend.lowering import lowers
from farflung.runtime.jax_backend.promotion import compute_type, is_floating, to

Array = jax.Array


def _wide(input: Array) -> Array:
    if not is_floating(input.dtype):
        raise ValueError("only floating point numbers can be normalised")
    return to(input, compute_type(input.dtype))


def _standardised(wide: Array, axes: tuple[int, ...], eps: float) -> Array:
    mean = jnp.mean(wide, axes, keepdims=True)
    centred = wide - mean
    return centred * lax.rsqrt(jnp.mean(centred * centred, axes, keepdims=True) + eps)


def _affine(normal: Array, weight: Array | None, bias: Array | None, shape: Sequence[int]) -> Array:
    """Scale and shift; `weight` and `bias` must broadcast as `shape` along the normalised values."""
    if weight is not None:
        normal = normal * to(weight, normal.dtype).reshape(shape)
    if bias is not None:
        normal = normal + to(bias, normal.dtype).reshape(shape)
    return normal


def _last_axes(input: Array, normalized_shape: Sequence[int], *scales: Array | None) -> tuple[int, ...]:
    shape = tuple(normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        raise ValueError(f"normalized_shape {list(shape)} does not end the shape {list(input.shape)}")
    if any(scale is not None and scale.shape != shape for scale in scales):
        raise ValueError(f"weight and bias must have shape {list(shape)}")
    return tuple(range(input.ndim - len(shape), input.ndim))


@lowers("layer_norm.default")
def layer_norm(
    input: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-05,
    cudnn_enable: bool = True,
) -> Array:
    axes = _last_axes(input, normalized_shape, weight, bias)
    normal = _standardised(_wide(input), axes, eps)
    return to(_affine(normal, weight, bias, normalized_shape), input.dtype)


@lowers("rms_norm.default")
def rms_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None = None, eps: float | None = None
) -> Array:
    axes = _last_axes(input, normalized_shape, weight)
    wide = _wide(input)
    least = float(jnp.finfo(wide.dtype).eps) if eps is None else eps
    normal = wide * lax.rsqrt(jnp.mean(wide * wide, axes, keepdims=True) + least)
    return to(_affine(normal, weight, None, normalized_shape), input.dtype)


@lowers("group_norm.default")
def group_norm(
    input: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-05,
    cudnn_enabled: bool = True,
) -> Array:
    channels = _channels(input, weight, bias)
    if num_groups < 1 or channels % num_groups:
        raise ValueError(f"{channels} channels do not make {num_groups} groups")
    wide = _wide(input)
    grouped = wide.reshape(wide.shape[0], num_groups, -1)
    normal = _standardised(grouped, (2,), eps).reshape(wide.shape)
    return to(_affine(normal, weight, bias, _along_channels(input)), input.dtype)


def _channels(input: Array, *scales: Array | None) -> int:
    if input.ndim < 2:
        raise ValueError("the second dimension must be the channels")
    if any(scale is not None and scale.shape != (input.shape[1],) for scale in scales):
        raise ValueError(f"tensors for channels must have shape [{input.shape[1]}]")
    return input.shape[1]


def _along_channels(input: Array) -> list[int]:
    return [input.shape[1] if axis == 1 else 1 for axis in range(input.ndim)]


def _batch_statistics(input: Array) -> tuple[Array, Array, int]:
    """Mean and biased variance of each channel, and the number of elements."""
    wide = _wide(input)
    axes = tuple(axis for axis in range(input.ndim) if axis != 1)
    mean = jnp.mean(wide, axes, keepdims=True)
    centred = wide - mean
    variance = jnp.mean(centred * centred, axes)
    return mean.reshape(-1), variance, int(np.prod([input.shape[axis] for axis in axes], dtype=np.int64))


def _normalised(input: Array, mean: Array, inverse: Array, weight: Array | None, bias: Array | None) -> Array:
    shape = _along_channels(input)
    wide = _wide(input)
    normal = (wide - to(mean, wide.dtype).reshape(shape)) * to(inverse, wide.dtype).reshape(shape)
    return to(_affine(normal, weight, bias, shape), input.dtype)


@lowers("_native_batch_norm_legit_functional.default")
def batch_norm(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    """The result, the batch's mean and inverse deviation (empty outside training), and the new statistics."""
    _channels(input, weight, bias, running_mean, running_var)
    if not training:
        inverse = lax.rsqrt(to(running_var, compute_type(running_var.dtype)) + eps)
        made = _normalised(input, running_mean, inverse, weight, bias)
        nothing = jnp.zeros((0,), input.dtype)
        return made, nothing, nothing, running_mean, running_var
    mean, variance, count = _batch_statistics(input)
    inverse = lax.rsqrt(variance + eps)
    unbiased = variance * (count / (count - 1) if count > 1 else jnp.nan)
    return (
        _normalised(input, mean, inverse, weight, bias),
        lax.stop_gradient(mean),
        lax.stop_gradient(inverse),
        _moved(running_mean, mean, momentum),
        _moved(running_var, unbiased, momentum),
    )


def _moved(running: Array, seen: Array, momentum: float) -> Array:
    wide = compute_type(running.dtype)
    return to(
        lax.stop_gradient(momentum * to(seen, wide) + (1 - momentum) * to(running, wide)), running.dtype
    )


@lowers("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    input: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> tuple[Array, ...]:
    _channels(input, weight, bias)
    mean, variance, _ = _batch_statistics(input)
    inverse = lax.rsqrt(variance + eps)
    made = _normalised(input, mean, inverse, weight, bias)
    return made, lax.stop_gradient(mean), lax.stop_gradient(inverse)

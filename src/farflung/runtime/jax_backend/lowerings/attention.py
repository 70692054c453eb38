"""Scaled dot product attention by its formula; XLA fuses what it can."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from farflung.runtime.jax_backend.lowering import lowers
from farflung.runtime.jax_backend.lowerings.random import dropped
from farflung.runtime.jax_backend.promotion import BOOL, compute_type, is_floating, to

Array = jax.Array


@lowers("scaled_dot_product_attention.default")
def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    random_key: Array,
) -> Array:
    """A query that may look at nothing gets zeros."""
    _check(query, key, value, attn_mask, is_causal)
    if enable_gqa:
        key, value = _for_each_head(key, query), _for_each_head(value, query)
    wide = compute_type(query.dtype)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = jnp.matmul(query, jnp.swapaxes(key, -1, -2), preferred_element_type=wide) * to(factor, wide)
    allowed = None
    if is_causal:
        allowed = jnp.tril(jnp.ones(scores.shape[-2:], BOOL))
    elif attn_mask is not None and attn_mask.dtype == BOOL:
        allowed = attn_mask
    elif attn_mask is not None:
        scores = scores + to(attn_mask, wide)
    shares = _shares(scores, allowed)
    if dropout_p:
        shares = dropped(random_key, shares, dropout_p)[0]
    return to(jnp.matmul(shares, to(value, wide)), query.dtype)


def _check(query: Array, key: Array, value: Array, mask: Array | None, is_causal: bool) -> None:
    if not query.dtype == key.dtype == value.dtype or not is_floating(query.dtype):
        raise ValueError(f"attention over {query.dtype}, {key.dtype} and {value.dtype}")
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ValueError("queries, keys and values need at least two dimensions")
    if key.shape[-2] != value.shape[-2] or query.shape[-1] != key.shape[-1]:
        raise ValueError("keys and values must match in number, and keys and queries in width")
    if mask is not None and is_causal:
        raise ValueError("attention is causal or masked, not both")


def _for_each_head(array: Array, query: Array) -> Array:
    """Repeat keys or values for each head of the queries that shares them."""
    heads, shared = query.shape[-3], array.shape[-3]
    if not shared or heads % shared:
        raise ValueError(f"{heads} heads cannot share {shared}")
    return array if heads == shared else jnp.repeat(array, heads // shared, -3)


def _shares(scores: Array, allowed: Array | None) -> Array:
    if allowed is not None:
        scores = jnp.where(allowed, scores, -jnp.inf)
    most = jax.lax.stop_gradient(jnp.max(scores, -1, keepdims=True, initial=-jnp.inf))
    weights = jnp.exp(scores - jnp.where(most == -jnp.inf, 0, most))
    total = jnp.sum(weights, -1, keepdims=True)
    return weights / jnp.where(total == 0, 1, total)

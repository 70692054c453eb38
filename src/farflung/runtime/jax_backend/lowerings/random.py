"""Random ops: other numbers than PyTorch's, from the same distributions, and the same in every run.

`random_key` are the two words of a Threefry key: the node's seed (`farflung.seeds`).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from farflung.runtime.jax_backend.lowering import lowers
from farflung.runtime.jax_backend.promotion import BOOL, FLOAT32, is_floating, to

Array = jax.Array


def _key(words: Array) -> Array:
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def dropped(random_key: Array, array: Array, p: float) -> tuple[Array, Array]:
    """The array with a share `p` of its elements set to zero and the others scaled up, and the mask."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout of {p}")
    if p == 1:
        return jnp.zeros_like(array), jnp.zeros(array.shape, BOOL)
    mask = _bernoulli(random_key, 1 - p, array.shape)
    return jnp.where(mask, array * to(1 / (1 - p), array.dtype), 0), mask


def _bernoulli(random_key: Array, p: float, shape: Sequence[int]) -> Array:
    return jax.random.bernoulli(_key(random_key), to(p, FLOAT32), tuple(shape))


@lowers("native_dropout.default")
def native_dropout(input: Array, p: float, train: bool | None, *, random_key: Array) -> tuple[Array, Array]:
    if train is False or p == 0:
        return input, jnp.ones(input.shape, BOOL)
    if not is_floating(input.dtype):
        raise ValueError("integers have no dropout")
    return dropped(random_key, input, p)


@lowers("bernoulli.p")
def bernoulli(self: Array, p: float, *, random_key: Array) -> Array:
    if not 0 <= p <= 1:
        raise ValueError(f"a probability of {p}")
    return to(_bernoulli(random_key, p, self.shape), self.dtype)


@lowers("bernoulli.default")
def bernoulli_by_element(self: Array, *, random_key: Array) -> Array:
    """Each element is its own probability; no gradient reaches it."""
    _require_floating(self.dtype)
    drawn = jax.random.bernoulli(_key(random_key), lax.stop_gradient(to(self, FLOAT32)))
    return to(drawn, self.dtype)


@lowers("exponential.default")
def exponential(self: Array, lambd: float = 1, *, random_key: Array) -> Array:
    if lambd <= 0:
        raise ValueError(f"a rate of {lambd}")
    _require_floating(self.dtype)
    return jax.random.exponential(_key(random_key), self.shape, self.dtype) / to(lambd, self.dtype)


def _uniform(shape: Sequence[int], dtype: np.dtype, random_key: Array) -> Array:
    _require_floating(dtype)
    return jax.random.uniform(_key(random_key), tuple(shape), dtype)


def _normal(shape: Sequence[int], dtype: np.dtype, random_key: Array) -> Array:
    _require_floating(dtype)
    return jax.random.normal(_key(random_key), tuple(shape), dtype)


def _require_floating(dtype: np.dtype) -> None:
    if not is_floating(dtype):
        raise ValueError(f"random numbers of type {dtype}")


@lowers("rand.default")
def rand(size: Sequence[int], dtype: np.dtype | None = None, *, random_key: Array) -> Array:
    return _uniform(size, dtype or FLOAT32, random_key)


@lowers("randn.default")
def randn(size: Sequence[int], dtype: np.dtype | None = None, *, random_key: Array) -> Array:
    return _normal(size, dtype or FLOAT32, random_key)


@lowers("rand_like.default")
def rand_like(self: Array, dtype: np.dtype | None = None, *, random_key: Array) -> Array:
    return _uniform(self.shape, dtype or self.dtype, random_key)


@lowers("randn_like.default")
def randn_like(self: Array, dtype: np.dtype | None = None, *, random_key: Array) -> Array:
    return _normal(self.shape, dtype or self.dtype, random_key)

"""What this process's device sustains, measured."""

from __future__ import annotations

import statistics
import time

import jax
import jax.numpy as jnp

SIZE = 1024
SECONDS = 0.25


def measure_tflops() -> float:
    """TFLOP/s of float32 matrix products with all that this process may use, in about a quarter second.

    The median of many products, so that one which was interrupted does not count. A device for which one
    product takes longer than that does two, and compiling comes first.
    """
    left, right = (jnp.ones((SIZE, SIZE), jnp.float32) for _ in range(2))
    product = jax.jit(jnp.matmul).lower(left, right).compile()
    jax.block_until_ready(product(left, right))
    took: list[float] = []
    deadline = time.perf_counter() + SECONDS
    while not took or time.perf_counter() < deadline:
        started = time.perf_counter()
        jax.block_until_ready(product(left, right))
        took.append(time.perf_counter() - started)
    return 2 * SIZE**3 / statistics.median(took) / 1e12

"""Ops that draw: the same numbers from the same key, others from another, of the distribution asked for."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from farflung.opdag import opset
from farflung.runtime.jax_backend import lowering
from farflung.runtime.jax_backend.arrays import DTYPES

MANY = jnp.ones((200, 300), jnp.float32)
HALF = jnp.ones((50, 60), DTYPES["bfloat16"])
CALLS: list[tuple[str, dict[str, Any], float, float]] = [  # op, arguments, mean, standard deviation
    ("native_dropout.default", {"input": MANY, "p": 0.25, "train": True}, 1.0, (0.25 / 0.75) ** 0.5),
    ("native_dropout.default", {"input": HALF, "p": 0.5, "train": None}, 1.0, 1.0),
    ("bernoulli.p", {"self": MANY, "p": 0.2}, 0.2, 0.4),
    ("bernoulli.default", {"self": 0.3 * MANY}, 0.3, 0.21**0.5),
    ("exponential.default", {"self": MANY, "lambd": 2.0}, 0.5, 0.5),
    ("rand.default", {"size": [200, 300]}, 0.5, 12**-0.5),
    ("rand_like.default", {"self": HALF}, 0.5, 12**-0.5),
    ("randn.default", {"size": [200, 300], "dtype": DTYPES["float64"]}, 0.0, 1.0),
    ("randn_like.default", {"self": HALF}, 0.0, 1.0),
]


def draw(op: str, arguments: dict[str, Any], key: tuple[int, int]) -> Any:
    made = lowering.table()[f"aten.{op}"](**arguments, random_key=jnp.array(key, jnp.uint32))
    return made[0] if isinstance(made, tuple) else made


@pytest.mark.parametrize(("op", "arguments", "mean", "deviation"), CALLS, ids=[call[0] for call in CALLS])
def test_draws_follow_their_distribution(
    op: str, arguments: dict[str, Any], mean: float, deviation: float
) -> None:
    first, again, other = (draw(op, arguments, key) for key in ((1, 2), (1, 2), (2, 1)))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    wide = np.asarray(first).astype(np.float64)
    error = 6 * max(deviation, 0.1) / wide.size**0.5 + 4e-3
    assert abs(wide.mean() - mean) < error
    assert abs(wide.std() - deviation) < 2 * error


def test_dropout_tells_what_stayed() -> None:
    made, kept = lowering.table()["aten.native_dropout.default"](
        input=MANY, p=0.25, train=True, random_key=jnp.array([3, 4], jnp.uint32)
    )
    assert kept.dtype == np.bool_
    assert np.array_equal(np.asarray(made), np.where(kept, np.float32(1 / 0.75), 0))


def test_attention_drops_shares_and_scales_the_others() -> None:
    wide = {name: jnp.ones((2, 3, 40, 8), jnp.float32) for name in ("query", "key", "value")}
    made = draw("scaled_dot_product_attention.default", wide | {"dropout_p": 0.3}, (5, 6))
    assert abs(float(made.mean()) - 1) < 0.05
    assert float(made.std()) > 0.05
    assert np.allclose(draw("scaled_dot_product_attention.default", wide, (5, 6)), 1)


def test_every_op_that_draws_is_here() -> None:
    drawn = {f"aten.{op}" for op, *_ in CALLS} | {"aten.scaled_dot_product_attention.default"}
    assert drawn == {name for name, op in opset.table().items() if op.random}
